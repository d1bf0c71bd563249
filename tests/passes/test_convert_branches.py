"""Test which branches get a second form for graph capture, which has no branches on numbers.

lowerings/test_capturable.py tests what the second form computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from lowerings.rules import read
from lowerings.test_capturable import BRANCHES

from optgen.ir.kinds import Stage
from optgen.ir.nodes import Assign, Call, Expr, If, Program, Ref, refs
from optgen.passes.convert_branches import CAPTURABLE, if_convert
from optgen.passes.plan_rule import plan


def conditions(program: Program) -> Iterator[Expr]:
    for stmt in program:
        if isinstance(stmt, If):
            yield stmt.condition
            yield from conditions((*stmt.then, *stmt.orelse))


def branches_with_two_forms(program: Program) -> Iterator[If]:
    """Yield the branches with two forms. None of them contains another."""
    for stmt in program:
        if isinstance(stmt, If) and stmt.condition == CAPTURABLE:
            yield stmt
        elif isinstance(stmt, If):
            yield from branches_with_two_forms((*stmt.then, *stmt.orelse))


@pytest.mark.parametrize("name", BRANCHES)
def test_no_branch_on_a_number_is_left_in_the_second_form(name: str) -> None:
    converted = if_convert(plan(read(BRANCHES[name])))
    programs = (converted.scalars, converted.sweeps[0].body)
    branches = [b for p in programs for b in branches_with_two_forms(p)]
    read_in_conditions = [r for b in branches for c in conditions(b.then) for r in refs(c)]
    assert {converted.kinds[r].stage for r in read_in_conditions} <= {Stage.STATIC}
    assert all(any(conditions(branch.orelse)) for branch in branches)


def test_a_branch_on_flags_stays_as_it_is() -> None:
    before = plan(read("if flag_a and not flag_b:\n    p = p - lr * g\nelse:\n    p = p + lr * g"))

    assert if_convert(before).scalars == before.scalars
    assert if_convert(before).sweeps == before.sweeps


def test_a_condition_on_a_value_that_the_branch_changes_gets_a_name() -> None:
    converted = if_convert(plan(read(BRANCHES["a branch that changes the state in its condition"])))

    (branch,) = branches_with_two_forms(converted.scalars)
    condition, *_, first, second = branch.then
    assert isinstance(condition, Assign)
    assert condition.target == Ref("condition1")
    for selection in (first, second):
        assert isinstance(selection, Assign)
        assert isinstance(selection.value, Call)
        assert selection.value.args[0] == condition.target


def test_a_branch_on_a_hyperparameter_that_may_be_a_tensor_gets_a_second_form() -> None:
    algorithm = read("if c:\n    p = p - lr * g\nif lr > c:\n    p = p - g")
    hypers = tuple(replace(h, tensor="always") for h in algorithm.hypers)
    bodies = [
        if_convert(plan(a)).sweeps[0].body for a in (algorithm, replace(algorithm, hypers=hypers))
    ]

    assert [len(list(branches_with_two_forms(body))) for body in bodies] == [0, 1]
    first, second = (list(conditions(body))[1] for body in bodies)
    assert (first, second) == (Call("truth", (Ref("c"),)), Call("holds", (Ref("c"),)))

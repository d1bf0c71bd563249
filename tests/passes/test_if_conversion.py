"""Test which branches get a second form without branches on numbers, for graph capture.

lowerings/test_capturable.py tests what the second form computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from lowerings.rules import read
from lowerings.test_capturable import BRANCHES

from optgen.ir.binding_times import Stage
from optgen.ir.nodes import Assign, Call, Expr, If, Program, Ref, refs
from optgen.passes.if_conversion import CAPTURABLE, if_convert
from optgen.passes.plan import plan


def conditions(program: Program) -> Iterator[Expr]:
    for stmt in program:
        if isinstance(stmt, If):
            yield stmt.condition
            yield from conditions((*stmt.then, *stmt.orelse))


def branches_with_two_forms(program: Program) -> Iterator[If]:
    """Yield the branches with two forms; such a branch contains no other."""
    for stmt in program:
        if isinstance(stmt, If) and stmt.condition == CAPTURABLE:
            yield stmt
        elif isinstance(stmt, If):
            yield from branches_with_two_forms((*stmt.then, *stmt.orelse))


@pytest.mark.parametrize("name", BRANCHES)
def test_no_branch_on_a_number_is_left_in_the_second_form(name: str) -> None:
    selected = if_convert(plan(read(BRANCHES[name])))
    programs = (selected.scalars, selected.sweeps[0].body)
    branches = [b for p in programs for b in branches_with_two_forms(p)]
    read_in_conditions = [r for b in branches for c in conditions(b.then) for r in refs(c)]
    assert {selected.kinds[r].stage for r in read_in_conditions} <= {Stage.STATIC}
    assert all(any(conditions(branch.orelse)) for branch in branches)


def test_a_branch_on_flags_stays_as_it_is() -> None:
    before = plan(read("if flag_a and not flag_b:\n    p = p - lr * g\nelse:\n    p = p + lr * g"))

    assert if_convert(before).scalars == before.scalars
    assert if_convert(before).sweeps == before.sweeps


def test_a_condition_on_a_value_that_the_branch_changes_gets_a_name() -> None:
    selected = if_convert(plan(read(BRANCHES["a choice that changes the state it asks for"])))

    (branch,) = branches_with_two_forms(selected.scalars)
    naming, *_, first, second = branch.then
    assert isinstance(naming, Assign)
    assert naming.target == Ref("condition1")
    for choice in (first, second):
        assert isinstance(choice, Assign)
        assert isinstance(choice.value, Call)
        assert choice.value.args[0] == naming.target


def test_a_branch_on_a_hyperparameter_that_may_be_a_tensor_gets_a_second_form() -> None:
    algorithm = read("if c:\n    p = p - lr * g\nif lr > c:\n    p = p - g")
    hypers = tuple(replace(h, tensor="always") for h in algorithm.hypers)
    bodies = [
        if_convert(plan(a)).sweeps[0].body for a in (algorithm, replace(algorithm, hypers=hypers))
    ]

    assert [len(list(branches_with_two_forms(body))) for body in bodies] == [0, 1]
    first, second = (list(conditions(body))[1] for body in bodies)
    assert (first, second) == (Call("truth", (Ref("c"),)), Call("holds", (Ref("c"),)))

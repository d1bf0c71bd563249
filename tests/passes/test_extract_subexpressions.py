"""Test that values get names of their own, and that names of items are read again."""

from __future__ import annotations

from collections import Counter

import pytest
from spec_texts import LR, spec

from optgen.ir.nodes import Assign, Call, Const, If, Program, Ref, assigns, expressions, walk
from optgen.passes.extract_subexpressions import reuse_item_names
from optgen.passes.plan_rule import plan
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

STATES = 'v=state("exp_avg_sq"), U=state("square", shape=("rows", "rows"))'
MATRIX = 'require(ndim(p) >= 2, "no matrix: {shape}")'
LAST = "p = p - lr * v"


def sweep_body(*body: str) -> Program:
    """Return the statements of a rule's only sweep."""
    (algorithm,) = read_spec(
        Spec("Made", spec(MATRIX, *body, LAST, states=STATES, hypers=LR), "made.py", 1)
    )
    (sweep,) = plan(algorithm, {"factored": True}).sweeps
    return sweep.body


def op_counts(*body: str) -> Counter[str]:
    """Return how often the sweep of a rule has each op."""
    nodes = (node for expr in expressions(sweep_body(*body)) for node in walk(expr))
    return Counter(node.op for node in nodes if isinstance(node, Call))


@pytest.mark.parametrize(
    ("body", "op", "count"),
    [
        (("v = (U @ g) ** 2", "U = U + 1"), "@", 1),
        (("v = U @ g / (1 + norm(U @ g))", "U = U + 1"), "@", 1),
        (("v = transpose(U) @ g @ transpose(g) @ g + transpose(U) @ g", "U = U + 1"), "@", 3),
        (("U = qr(U) + transpose(qr(U))", "v = g"), "qr", 1),
        (("v = abs(U @ g)", "U = U + 1", "v = v + abs(U @ g) - abs(U @ g)"), "@", 2),
        (("v = abs(U @ g)", "v = v * abs(U @ g)", "U = U + 1"), "@", 1),
        (("v = (U @ g + g) ** 2", "U = U + 1"), "@", 1),
        (("if t > 1:", "    v = U @ g", "v = v + U @ g", "U = U + 1"), "@", 2),
        (("v = U @ g", "if t > 1:", "    v = v + U @ g", "U = U + 1"), "@", 1),
    ],
)
def test_equal_products_are_computed_once(body: tuple[str, ...], op: str, count: int) -> None:
    assert op_counts(*body)[op] == count


@pytest.mark.parametrize(
    "body",
    [
        ("v = U @ g", "U = 0.5 * U", "v = v + U @ g"),
        ("v = U @ g", "g = 0.5 * g", "v = v + U @ g", "U = U + 1"),
    ],
)
def test_products_of_changed_values_are_computed_again(body: tuple[str, ...]) -> None:
    assert op_counts(*body)["@"] == 2


def test_each_arm_computes_its_own_product() -> None:
    """A step takes only one arm, so no statement before the branch computes the product."""
    program = sweep_body("if t > 1:", "    v = U @ g", "else:", "    v = g - U @ g", "U = U + 1")
    (branch,) = (stmt for stmt in program if isinstance(stmt, If) and stmt.orelse)
    counts = [str(arm).count("op='@'") for arm in (branch.then, branch.orelse)]
    assert counts == [1, 1]
    assert not any("product" in stmt.target.name for stmt in assigns(program))


def test_a_transpose_gets_no_name() -> None:
    """A transpose copies nothing, so it may be computed twice."""
    assert op_counts("v = transpose(U) @ g + transpose(U) @ p", "U = U + 1")["transpose"] == 2


FIRST_ITEM = Call("item", (Ref("eps"), Const(0)))
UNPACKING = Assign(Ref("eps1"), FIRST_ITEM)


def branch_on(value: object) -> Program:
    """Return a branch on the condition that a value is None."""
    condition = Call("is_none", (value,))  # type: ignore[arg-type]
    return (If(condition, (Assign(Ref("floor"), Const(1)),), ()),)


def test_only_reads_below_the_unpacking_are_replaced() -> None:
    above, below = branch_on(FIRST_ITEM), branch_on(Ref("eps1"))

    assert reuse_item_names((*above, UNPACKING, *above)) == (*above, UNPACKING, *below)


def test_a_name_that_is_assigned_again_does_not_replace_the_item() -> None:
    program = (UNPACKING, Assign(Ref("eps1", 1), Const(2)), *branch_on(FIRST_ITEM))

    assert reuse_item_names(program) == program

"""Test that rows, columns and numbers read after a matrix op are also reduced after it."""

from __future__ import annotations

import pytest
import torch
from passes.test_cut_phases import MATRIX, assert_plan_agrees, plan_for
from spec_texts import read, spec

from optgen.ir.kinds import Axes, Stage
from optgen.ir.nodes import Ref, assigns, expressions
from optgen.ir.plan import MatrixCall, Plan, reads
from optgen.passes.cut_phases import Order
from optgen.passes.plan_rule import plan, why_uncut

MATRIX_OP = "orthogonalize(m, k, 3, 1e-7)"
HYPERS = "lr=hyper(0.1), k=hyper((1.5, -0.5, 0.0))"
STATES = 'm=state("exp_avg"), r=state("rows", shape="row")'
RULES = {
    "numbers": (f"o = {MATRIX_OP}", "p = p - lr * o * norm(p) * max_abs(g) * norm(m)"),
    "a sum before and after the op": (
        "m = m / norm(m)",
        f"o = {MATRIX_OP}",
        "p = p - lr * o * norm(m) / norm(g)",
    ),
    "a sum on both sides in one expression": (
        "p = p - lr * norm(g) * orthogonalize(g * norm(g), k, 3, 1e-7)",
    ),
    "rows": (
        f"o = {MATRIX_OP}",
        "r = lerp(r, row_mean(o**2), 0.5)",
        "p = p - lr * o / (r + rms(g))",
    ),
    "old rows": (
        f"o = {MATRIX_OP}",
        "p = p - lr * o / (1 + r)",
        "r = lerp(r, row_mean(g**2), 0.5)",
    ),
    "a choice": (
        "if t > 1:",
        "    s = norm(p)",
        "else:",
        "    s = 0.5",
        f"p = p - lr * s * {MATRIX_OP}",
    ),
    "one op after another": (
        "n = norm(g)",
        f"o = {MATRIX_OP}",
        "q = orthogonalize(o * n + g, k, 3, 1e-7)",
        "p = p - lr * (o + q * max_abs(m))",
    ),
    "a state that is stored before": (
        "m = m / 2 + g / norm(g)",
        f"o = {MATRIX_OP}",
        "p = p - lr * (o + m)",
    ),
}


def check_that_no_reduced_value_crosses(plan: Plan) -> None:
    """Check that no row, column or number from before a matrix op is read after it."""
    computed: set[Ref] = set()
    before: set[Ref] = set()
    for phase in plan.phases:
        if isinstance(phase, MatrixCall):
            before |= computed
            continue
        assert before.isdisjoint(r for e in expressions(phase.body) for r in reads(e))
        kinds = ((a.target, plan.kinds[a.target]) for a in assigns(phase.body))
        computed |= {
            ref for ref, k in kinds if k.axes is not Axes.TENSOR and k.stage is Stage.DEVICE
        }


@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("case", RULES)
def test_no_row_column_or_number_crosses_a_matrix_op(case: str, order: Order) -> None:
    body = (MATRIX, "m = m / 2 + g", *RULES[case])
    body += () if "r = " in " ".join(body) else ("r = lerp(r, row_mean(g), 0.25)",)
    algorithm = read(spec(*body, states=STATES, hypers=HYPERS))
    plan_of_shape = plan_for(algorithm, (3, 4), order)
    check_that_no_reduced_value_crosses(plan_of_shape)
    generator = torch.Generator().manual_seed(2)
    grads = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(4)]
    values = {h.name: h.default for h in algorithm.hypers}
    assert_plan_agrees(plan_of_shape, algorithm, values, grads[0], grads)


READ_ON_BOTH_SIDES = {
    "a number": ("n = norm(g)", "p = p - lr * n * orthogonalize(m * n, k, 3, 1e-7)"),
    "rows": (
        "r = r / 2 + row_mean(g)",
        "p = p - lr * orthogonalize(m * r, k, 3, 1e-7) / (1 + r**2)",
    ),
    "a scaled gradient": ("g = g / norm(g)", "p = p - lr * orthogonalize(g, k, 3, 1e-7) * g"),
}


@pytest.mark.parametrize("case", READ_ON_BOTH_SIDES)
def test_a_rule_with_a_value_read_before_and_after_a_matrix_op_is_not_cut(case: str) -> None:
    body = (MATRIX, "m = m / 2 + g", *READ_ON_BOTH_SIDES[case])
    states = STATES if "r = " in " ".join(body) else 'm=state("exp_avg")'
    algorithm = read(spec(*body, states=states, hypers=HYPERS))
    assert why_uncut(algorithm) == "values of sums are read before and after `orthogonalize`"
    assert len(plan(algorithm).phases) == 1


def test_a_rule_whose_matrix_op_needs_rows_that_are_computed_after_it_is_not_cut() -> None:
    """The op reads the new rows, and a statement after it needs the old ones."""
    body = ("x = g", "g = r * g", "r = r / 2", "_j = mean(g)")
    last = ("x = orthogonalize(lerp(x, r, p), k, 3, 1e-7)", "p = g")
    hypers = "k=hyper((1.5, -0.5, 0.0))"
    algorithm = read(
        spec(MATRIX, *body, *last, states='r=state("rows", shape="row")', hypers=hypers)
    )
    assert "read after it depend on each other" in why_uncut(algorithm)
    assert len(plan(algorithm).phases) == 1

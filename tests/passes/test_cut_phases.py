"""Test where rules with reductions and matrix ops are cut, and that their meaning stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Golden
from invariants import verify_plan
from plan_run import run_plan
from planning import WITH_PHASES
from spec_texts import read, spec

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.plan import Plan, Sweep
from optgen.ir.print_ir import to_text
from optgen.passes.cut_phases import Order
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan_rule import plans
from optgen.passes.sweep_algebra import fold_denominators

SHAPES = ((), (5,), (3, 4), (2, 3, 4), (2, 2, 3, 1), (1, 4), (4, 1))


@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("name", WITH_PHASES)
def test_phases_are_as_recorded(name: str, order: Order, golden: Golden) -> None:
    texts = [to_text(hoist_scalars(p)) for p in plans(WITH_PHASES[name], order)]
    golden.check("\n".join(texts))


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", WITH_PHASES)
def test_cutting_keeps_the_meaning(name: str, shape: tuple[int, ...], order: Order) -> None:
    algorithm = WITH_PHASES[name]
    if algorithm.requires:  # all these rules take matrices only
        shape = shape if len(shape) == 2 else (3, 2)
    plan_of_shape = plan_for(algorithm, shape, order)
    generator = torch.Generator().manual_seed(len(shape))
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(4)]
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    for settings in ({}, {"weight_decay": 0.3}, {"lr": 0.5}):
        hypers = {h.name: settings.get(h.name, h.default) for h in algorithm.hypers}
        assert_plan_agrees(plan_of_shape, algorithm, hypers, start, grads)


def plan_for(algorithm: Algorithm, shape: tuple[int, ...], order: Order) -> Plan:
    """Return the verified plan for parameters of a shape, with its scalars hoisted."""
    candidates = [
        p for p in plans(algorithm, order) if p.facts.get("factored") is not (len(shape) < 2)
    ]
    (plan_of_shape,) = candidates
    verify_plan(plan_of_shape, hoisted=False)
    hoisted = hoist_scalars(fold_denominators(plan_of_shape))
    verify_plan(hoisted)
    return hoisted


def assert_plan_agrees(
    plan_of_shape: Plan,
    algorithm: Algorithm,
    hypers: dict[str, Any],
    start: torch.Tensor,
    grads: Any,
) -> None:
    """Check that plan and rule agree on parameter and states after every step."""
    found, expected, states = start, start, {}  # type: Any, Any, Any
    expected_states: Any = {}
    for grad in grads:
        found, states = run_plan(plan_of_shape, hypers, found, grad, states)
        expected, expected_states = evaluate(
            algorithm, hypers, expected, grad, expected_states, scalar_dtype=torch.float64
        )
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12, equal_nan=True)
        assert states.keys() == expected_states.keys()
        for key, value in expected_states.items():
            torch.testing.assert_close(
                torch.as_tensor(states[key]), torch.as_tensor(value), rtol=1e-11, atol=1e-12
            )


def test_a_late_plan_has_no_unnecessary_sweep() -> None:
    """A plan has only as many sweeps as the reductions demand."""
    sweeps = {
        name: [sum(isinstance(p, Sweep) for p in plan.phases) for plan in plans(algorithm)]
        for name, algorithm in WITH_PHASES.items()
    }
    assert sweeps["Adafactor"] == [3, 2]
    assert sweeps["Muon"] == [2]


BRANCHES = {
    "a reduction of the untaken arm is NaN": (
        "if t > 1:",
        "    g = g / norm(m)",
        "m = m / 2 + g",
        "p = p - lr * m",
    ),
    "both arms reduce": (
        "if t > 2:",
        "    u = rms(g)",
        "else:",
        "    u = 2 * max_abs(p)",
        "m = m / 2 + u * g",
        "p = p - lr * m",
    ),
    "a number that one arm changes": (
        "u = lr",
        "if t % 2 == 0:",
        "    u = u * norm(g)",
        "m = m / 2 + g",
        "p = p - u * m * mean(m)",
    ),
    "a number that only one arm has to wait for": (
        "if lr:",
        "    u = maximum(lr, norm(p))",
        "else:",
        "    u = lr",
        "u = 2 * u",
        "m = m / 2 + g",
        "p = p - u * m",
    ),
    "a reduction inside a where": (
        "m = where(rms(g) > 1, m / 2 + g / rms(g), m)",
        "p = p - lr * where(sum(m) > 0, m, -m)",
    ),
}


@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("case", BRANCHES)
def test_reductions_under_an_if_keep_their_meaning(case: str, order: Order) -> None:
    """The reductions are always computed, and used only if the condition holds."""
    algorithm = read(spec(*BRANCHES[case], states='m=state("exp_avg")'))
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(5)]
    hypers = {h.name: h.default for h in algorithm.hypers}
    assert_plan_agrees(plan_for(algorithm, (5,), order), algorithm, hypers, grads[0], grads)


MATRIX = 'require(ndim(p) == 2, "{shape}")'
MATRIX_OP_RULES = {
    "a scaled gradient": ("u = 0.5 * g", "o = orthogonalize(u, k, 3, 1e-7)"),
    "the gradient itself": ("o = orthogonalize(g, k, 3, 1e-7)",),
    "the parameter itself": ("o = orthogonalize(p, k, 3, 1e-7) * rms(g)",),
    "an expression": ("o = 2 * orthogonalize(g - m * mean(g), k, 3, 1e-7)",),
    "the result of another matrix op": (
        "o = orthogonalize(orthogonalize(g, k, 2, 1e-7) + p, k, 3, 1e-7)",
    ),
}


@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("case", MATRIX_OP_RULES)
def test_a_matrix_op_takes_any_operand(case: str, order: Order) -> None:
    """The sweep before the op stores its operand as a local, however the author wrote it."""
    body = (MATRIX, *MATRIX_OP_RULES[case], "m = m / 2 + o", "p = p - lr * m * rms(o)")
    hypers = "lr=hyper(0.1), k=hyper((1.5, -0.5, 0.0))"
    algorithm = read(spec(*body, states='m=state("exp_avg")', hypers=hypers))
    generator = torch.Generator().manual_seed(2)
    grads = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(4)]
    values = {h.name: h.default for h in algorithm.hypers}
    assert_plan_agrees(plan_for(algorithm, (3, 4), order), algorithm, values, grads[0], grads)


ROW_STATE_RULES = {
    "a value of the old rows is read after the new ones are computed": (
        "u = g / sqrt(1 + r**2)",
        "r = r / 2 + row_mean(g**2)",
        "p = p - lr * rms(u) * u",
    ),
    "rows that get two values": (
        "r = r / 2",
        "p = p - lr * r * g",
        "r = r + row_mean(g**2) * rms(p)",
    ),
    "rows that get another value in one arm": (
        "r = r + row_mean(g)",
        "if t > 1:",
        "    r = r / norm(r)",
        "p = p - lr * r * g * mean(r)",
    ),
    "a scaled local that is reduced": ("u = 0.5 * where(norm(g) > 1, g, p)", "r = row_mean(u)"),
}


@pytest.mark.parametrize("order", ["late", "early"])
@pytest.mark.parametrize("case", ROW_STATE_RULES)
def test_row_states_keep_their_meaning(case: str, order: Order) -> None:
    """The state is stored once, and every sweep that needs the old rows computes from them."""
    body = (MATRIX, *ROW_STATE_RULES[case], "p = p - lr * g * r")
    algorithm = read(spec(*body, states='r=state("rows", shape="row")'))
    generator = torch.Generator().manual_seed(2)
    grads = [torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(4)]
    values = {h.name: h.default for h in algorithm.hypers}
    assert_plan_agrees(plan_for(algorithm, (3, 4), order), algorithm, values, grads[0], grads)

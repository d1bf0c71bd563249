"""Test the rewrites of sums: they keep the meaning, and apply only where they may."""

from __future__ import annotations

import pytest
import torch
from lowerings.rules import read
from plan_run import run_plan
from planning import RULES
from spec_texts import read as read_text
from spec_texts import spec

from optgen.ir.evaluate import evaluate
from optgen.ir.nodes import Call, Const, Linear, Ref, Term, assigns, expressions, walk
from optgen.ir.plan import Plan
from optgen.passes.plan_rule import plan
from optgen.passes.ranges import proven_ranges
from optgen.passes.sweep_algebra import merge_square_roots, use_lerp_form


def value_of(planned: Plan, name: str) -> Linear:
    """Return the value that is assigned to a state."""
    (sweep,) = planned.sweeps
    (value,) = [a.value for a in assigns(sweep.body) if a.target.name == name]
    assert isinstance(value, Linear)
    return value


def names(term: Term) -> list[str]:
    """Return the names of a term's factors, with "…" for any other factor."""
    return [factor.name if isinstance(factor, Ref) else "…" for factor in term.factors]


@pytest.mark.parametrize(
    "rule",
    [
        "m = beta * m + (1 - beta) * g; p = p - lr * m",
        "m = (1 - beta) * g + beta * m; p = p - lr * m",
        "m = m - c * m + c * g; p = p - lr * m",
        "w = 1 - beta; m = beta * m + w * g; p = p - lr * m",
    ],
)
def test_a_running_average_gets_the_lerp_form(rule: str) -> None:
    old_value, step = value_of(use_lerp_form(plan(read(rule))), "exp_avg").terms

    assert (old_value.coefficient, names(old_value)) == (Const(1), ["exp_avg"])
    (difference,) = step.factors
    assert isinstance(difference, Linear)
    assert [(t.coefficient, names(t)) for t in difference.terms] == [
        (Const(1), ["grad"]),
        (Const(-1), ["exp_avg"]),
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "m = beta * m + 0.1 * g; p = p - lr * m",
        "m = beta * m + (1 - c) * g; p = p - lr * m",
        "m = beta * m + (1 - beta) * g**2; p = p - lr * m",  # torch does not use lerp here either
        "m = beta * g + (1 - beta) * p; p = p - lr * m",
    ],
)
def test_any_other_sum_keeps_its_form(rule: str) -> None:
    before = plan(read(rule))

    assert value_of(use_lerp_form(before), "exp_avg") == value_of(before, "exp_avg")


def count_roots(planned: Plan) -> int:
    nodes = (n for s in planned.sweeps for e in expressions(s.body) for n in walk(e))
    return sum(isinstance(node, Call) and node.op == "sqrt" for node in nodes)


STATEMENTS_TO_MERGE = {
    "as Adadelta": "v = beta * v + (1 - beta) * g**2; p = p - lr * sqrt(v) / sqrt(v + eps) * g",
    "squares": "p = p - lr * sqrt(g * g) / sqrt(p**2)",
    "functions": "p = p - lr * sqrt(tanh(abs(g))) / sqrt(round(p**2))",
    "at least a nonnegative value": "v = maximum(v, g); p = p - lr * sqrt(v) / sqrt(abs(g))",
    "through a branch": (
        "if t > 3:\n    v = v + g**2\nelse:\n    v = 2 * v\np = p - lr * sqrt(v) / sqrt(eps + v)"
    ),
}
STATEMENTS_TO_KEEP = {
    "a first moment": "m = beta * m + (1 - beta) * g; p = p - lr * sqrt(m) / sqrt(m)",
    "a gradient": "p = p - lr * sqrt(g) / sqrt(abs(g))",
    "a difference": "v = v + g**2; p = p - lr * sqrt(v - g**2) / sqrt(v)",
    "an angle, which may be -0.0": "p = p - lr * sqrt(atan2(abs(g), p)) / sqrt(p**2)",
    "a ceiling, which may be -0.0": "p = p - lr * sqrt(p**2) / sqrt(ceil(maximum(g, -0.5)))",
    "a rounded value, which may be -0.0": "p = p - lr * sqrt(p**2) / sqrt(round(maximum(g, -0.5)))",
    "a negation, which may be -0.0": "p = p - lr * sqrt(p**2) / sqrt(-minimum(g, 0))",
    "a sine": "p = p - lr * sqrt(sin(g)) / sqrt(g**2)",
    "negative in one arm": (
        "if t > 3:\n    v = v + g**2\nelse:\n    v = v - g\np = p - lr * sqrt(v) / sqrt(eps + v)"
    ),
    "a sum with a first moment": "v = v + m; m = m + g; p = p - lr * sqrt(v) / sqrt(v + eps)",
}


@pytest.mark.parametrize("name", STATEMENTS_TO_MERGE)
def test_nonnegative_roots_are_merged(name: str) -> None:
    planned = plan(read(STATEMENTS_TO_MERGE[name]))

    assert (count_roots(planned), count_roots(merge_square_roots(planned))) == (2, 1)


@pytest.mark.parametrize("name", STATEMENTS_TO_KEEP)
def test_any_other_root_is_kept(name: str) -> None:
    planned = plan(read(STATEMENTS_TO_KEEP[name]))

    assert merge_square_roots(planned) == planned


def test_one_pair_of_three_roots_is_merged() -> None:
    planned = plan(read("p = p - lr * sqrt(abs(g)) * sqrt(abs(g)) / sqrt(p**2 + 1)"))
    hypers = {"lr": 0.1, "maximize": False}
    param, grad = torch.tensor([2.0]).double(), torch.tensor([-3.0]).double()

    assert count_roots(merge_square_roots(planned)) == 2
    found, _ = run_plan(merge_square_roots(planned), hypers, param, grad, {})
    torch.testing.assert_close(found, 2 - 0.1 * 3 / torch.tensor([5.0]).double().sqrt())


@pytest.mark.parametrize(
    ("start", "never_negative"), [("0", True), ("0.5", True), ("-1", False), ("'p'", False)]
)
def test_a_state_that_starts_below_zero_may_be_negative(start: str, never_negative: bool) -> None:
    text = spec("v = v + g**2", "p = p - lr * v", states=f'v=state("sum", init={start})')
    ranges = proven_ranges(read_text(text))

    is_proven = Ref("v") in ranges and ranges[Ref("v")].low >= 0
    assert is_proven is never_negative


def test_merged_roots_keep_the_meaning_of_adadelta() -> None:
    hypers = {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0, "maximize": False}
    algorithm = RULES["Adadelta"]
    generator = torch.Generator().manual_seed(0)
    param, grad = torch.randn(2, 10_000, dtype=torch.float64, generator=generator)
    state = {"square_avg": grad**2 * 0.3, "acc_delta": grad**2 * 1e-5, "step": 3.0}

    exact, _ = evaluate(algorithm, hypers, param, grad, state)
    for planned in (plan(algorithm), merge_square_roots(plan(algorithm))):
        found, _ = run_plan(planned, hypers, param, grad, state)
        torch.testing.assert_close(found, exact, rtol=1e-15, atol=1e-15)

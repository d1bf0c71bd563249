"""Test which running averages are rewritten in lerp form, and their values."""

from __future__ import annotations

import pytest
from lowerings.rules import read

from optgen.ir.nodes import Const, Linear, Ref, Term, assigns
from optgen.ir.plan import Plan
from optgen.passes.plan import plan
from optgen.passes.sweep_algebra import use_lerp_form


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

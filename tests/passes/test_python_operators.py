"""Test that a Python operator is kept if bounds of hyperparameters prove that it cannot raise."""

from __future__ import annotations

import pytest
from spec_texts import read, spec

from optgen.ir.nodes import Call, expressions, walk
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan_rule import plan
from optgen.passes.python_operators import use_ieee_operators

BOUNDED = "lr=hyper(0.1, ge=0), beta=hyper(0.9, ge=0, lt=1), eps=hyper(1e-8, gt=0), free=hyper(1.0)"


def guarded_ops(factor: str) -> set[str]:
    """Return the guarded ops in the plan of a rule whose update has this factor."""
    # a spec must read every hyperparameter
    unread = [name for name in ("beta", "eps", "free") if name not in factor]
    others = " * ".join(["lr", *unread])
    guarded = use_ieee_operators(
        hoist_scalars(plan(read(spec(f"p = p - {others} * g * ({factor})", hypers=BOUNDED))))
    )
    nodes = (n for e in (*expressions(guarded.scalars), *guarded.values()) for n in walk(e))
    found = {n.op for n in nodes if isinstance(n, Call)}
    return found & {"divide", "power", "remainder"}


@pytest.mark.parametrize(
    "safe",
    [
        "lr / (1 - beta**t)",
        "1 / (1 - beta)",
        "1 / (eps + lr)",
        "lr / sqrt(eps)",
        "1 / (t + 2)",
        "beta**t",
        "t % 3",
        "1 / maximum(1, free)",
        "free**2",
        "eps / machine_eps(p)",
        "1 / (2 - sin(free))",
        "1 / ceil(t / 2 + 1)",
        "1 / (5 - atan2(free, lr))",
    ],
)
def test_an_op_that_cannot_raise_stays_an_operator(safe: str) -> None:
    assert guarded_ops(safe) == set()


@pytest.mark.parametrize(
    ("unsafe", "op"),
    [
        ("1 / (t - 1)", "divide"),
        ("1 / free", "divide"),
        ("1 / (1 - free)", "divide"),
        ("1 / lr", "divide"),
        ("1 / (eps * eps)", "divide"),
        ("1 / (eps / 4)", "divide"),
        ("free**0.7", "power"),
        ("t**lr", "power"),
        ("beta**free", "power"),
        ("t % free", "remainder"),
        ("1 / (1 + cos(free))", "divide"),
        ("1 / floor(eps)", "divide"),
        ("lr / numel(p)", "divide"),  # the parameter may have no elements
    ],
)
def test_an_op_that_may_raise_is_guarded(unsafe: str, op: str) -> None:
    assert guarded_ops(unsafe) == {op}

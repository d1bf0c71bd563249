"""Test the oracle against torch.optim's for-loop: float64, 50 steps, every flag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from planning import RULES, TORCH_ALGORITHMS

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize, derive

STEPS = 50
SHAPE = (3, 5)

ADAM = ({}, {"weight_decay": 0.1}, {"amsgrad": True}, {"eps": 1e-3, "betas": (0.5, 0.6)})
DECOUPLED = ({"weight_decay": 0.1, "decoupled_weight_decay": True},)
FLAGS: dict[str, tuple[dict[str, Any], ...]] = {
    "SGD": (
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "Adam": (*ADAM, *DECOUPLED),
    "AdamW": (*ADAM, {"weight_decay": 0.0}),
    "RMSprop": (
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"centered": True},
        {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "alpha": 0.7},
    ),
    "RAdam": ({}, {"weight_decay": 0.1}, {"betas": (0.5, 0.6)}, *DECOUPLED),
    "NAdam": ({}, {"weight_decay": 0.1}, {"momentum_decay": 0.1}, *DECOUPLED),
    "Adamax": ({}, {"weight_decay": 0.1}, {"betas": (0.5, 0.6), "eps": 0.1}),
    "Adadelta": ({}, {"weight_decay": 0.1}, {"rho": 0.5, "eps": 1e-3}),
    "Adagrad": ({}, {"weight_decay": 0.1}, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    "ASGD": ({}, {"weight_decay": 0.1}, {"t0": 5, "lambd": 0.1, "alpha": 0.5}),
    "Rprop": ({}, {"etas": (0.3, 1.7), "step_sizes": (1e-3, 0.1)}),
}
CASES = [
    pytest.param(name, flags | maximize, id="-".join([name, *map(str, [*flags, *maximize])]))
    for name, all_flags in FLAGS.items()
    for flags in all_flags
    for maximize in ({}, {"maximize": True})
]


ALGORITHMS = {n: derive(a, RULES[a.base]) if a.base else a for n, a in TORCH_ALGORITHMS.items()}
"""The algorithms of torch's classes; derived ones have the rule of their base."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype, in which torch keeps step counts and scalar states."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def gradients(steps: int = STEPS) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        yield torch.randn(SHAPE, generator=generator, dtype=torch.float64)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("scalar_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "flags"), CASES)
def test_the_oracle_steps_as_torch(
    name: str, flags: dict[str, Any], scalar_dtype: torch.dtype
) -> None:
    algorithm = add_maximize(ALGORITHMS[name])
    hypers = {h.name: h.default for h in algorithm.hypers} | {"lr": 0.01} | flags
    ours, state = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(SHAPE), {}
    theirs = torch.nn.Parameter(ours.clone())
    with default_dtype(scalar_dtype):
        reference = getattr(torch.optim, name)([theirs], lr=0.01, foreach=False, **flags)
        for grad in gradients():
            theirs.grad = grad.clone()
            reference.step()
            ours, state = evaluate(algorithm, hypers, ours, grad, state, scalar_dtype)

    assert relative_error(ours, theirs) <= 1e-12
    assert_same_state(algorithm, state, reference.state[theirs])


def assert_same_state(algorithm: Algorithm, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that tensor states agree, and that the step count and scalar states are equal.

    Float64 scalars may differ in the last bit: Python and torch round 0.96 ** x differently.
    """
    for key in {*ours, *theirs}:
        if key == "step" and key not in theirs:
            continue
        if theirs[key] is None:
            assert key not in ours
        elif key == "step" or key in {s.key for s in algorithm.scalar_states()}:
            bound = 1e-14 if theirs[key].dtype == torch.float64 else 0
            assert float(ours[key]) == pytest.approx(float(theirs[key]), rel=bound, abs=0)
        else:
            assert relative_error(ours[key], theirs[key]) <= 1e-12


def test_evaluate_changes_no_argument_in_place() -> None:
    algorithm = ALGORITHMS["NAdam"]
    hypers = {h.name: h.default for h in algorithm.hypers}
    param, grad = torch.ones(3), torch.ones(3)
    _, first = evaluate(algorithm, hypers, param, grad, {})
    copies = {k: torch.as_tensor(v).clone() for k, v in first.items()}
    evaluate(algorithm, hypers, param, grad, first)
    assert param.tolist() == grad.tolist() == [1, 1, 1]
    assert all(torch.equal(torch.as_tensor(first[k]), copies[k]) for k in copies)


def test_a_new_scalar_state_has_the_scalar_dtype() -> None:
    algorithm = ALGORITHMS["NAdam"]
    hypers = {h.name: h.default for h in algorithm.hypers}
    for dtype in (torch.float32, torch.float64):
        _, state = evaluate(algorithm, hypers, torch.ones(3), torch.ones(3), {}, dtype)
        assert state["mu_product"].dtype == dtype
        assert state["exp_avg"].dtype == torch.float64


def test_a_hyperparameter_may_be_a_tensor() -> None:
    algorithm = ALGORITHMS["Adam"]
    hypers = {h.name: h.default for h in algorithm.hypers}
    tensors = hypers | {"lr": torch.tensor([0.001]), "betas": (torch.tensor(0.9), 0.999)}
    expected, _ = evaluate(algorithm, hypers, torch.ones(3), torch.ones(3), {})
    found, _ = evaluate(algorithm, tensors, torch.ones(3), torch.ones(3), {})
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)

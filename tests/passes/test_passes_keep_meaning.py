"""Test that every pass keeps the meaning of the catalogue's specs and of random specs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from invariants import verify_algorithm, verify_plan
from plan_run import run_plan
from planning import PASSES, RULES, WIDENING_RULES
from spec_texts import read as read_text
from spec_texts import spec
from strategies import FLAGS, specs

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.ir.nodes import filter_assigns, is_self_copy
from optgen.ir.print_ir import to_text
from optgen.passes.ssa import to_ssa
from optgen.spec.read_spec import read_spec

STEPS = 3


def read(text: str, folder: Path) -> Algorithm:
    path = folder / "random.py"
    path.write_text(text)
    return read_spec(path)[0]


def trajectory(
    step: Callable[..., Any], hypers: dict[str, Any], seed: int, steps: int = STEPS
) -> list[Any]:
    """Return parameter and state after each step, in checkpoint order."""
    generator = torch.Generator().manual_seed(seed)
    param = torch.randn(7, generator=generator, dtype=torch.float64)
    state: dict[str, Any] = {}
    values = []
    for _ in range(steps):
        grad = torch.randn(7, generator=generator, dtype=torch.float64)
        param, state = step(hypers, param, grad, state)
        values += [param.clone(), *(torch.as_tensor(v).clone() for v in state.values())]
    return values


def assert_near(found: list[Any], expected: list[Any]) -> None:
    for value, wanted in zip(found, expected, strict=True):
        finite = wanted[wanted.isfinite()]
        scale = max(1.0, finite.abs().max().item()) if finite.numel() else 1.0
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


def evaluate_exactly(algorithm: Algorithm, *args: Any) -> Any:
    """Run the oracle with scalar states in float64, like its tensors."""
    return evaluate(algorithm, *args, scalar_dtype=torch.float64)


def without_copies(algorithm: Algorithm) -> Algorithm:
    """Return a versioned rule without its copies of a name to the name's next version.

    Such copies only mark where branches join. In a first step the state that they read may be
    missing, and then the oracle cannot run them.
    """
    return replace(algorithm, rule=filter_assigns(algorithm.rule, lambda a: not is_self_copy(a)))


def defaults(algorithm: Algorithm) -> dict[str, Any]:
    return {h.name: h.default for h in algorithm.hypers}


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,  # the suite's result is the same every day
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=specs(), flags=FLAGS, seed=st.integers(0, 2**16))
def test_every_pass_keeps_the_meaning_of_random_specs(
    tmp_path: Path, text: str, flags: dict[str, Any], seed: int
) -> None:
    algorithm = read(text, tmp_path)
    hypers = defaults(algorithm) | flags

    expected = trajectory(partial(evaluate_exactly, algorithm), hypers, seed)
    versioned = to_ssa(algorithm)
    verify_algorithm(versioned)
    versioned_twice = to_ssa(versioned)  # to_ssa must keep the meaning of its own output too
    found = trajectory(partial(evaluate_exactly, without_copies(versioned_twice)), hypers, seed)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    for name, make_plan in PASSES.items():
        planned = make_plan(algorithm)
        note(f"{name}\n{to_text(planned)}")
        verify_plan(planned, hoisted="hoisted" in name)
        found = trajectory(partial(run_plan, planned), hypers, seed)
        assert_near(found, expected)


@pytest.mark.parametrize("name", PASSES)
def test_a_tensor_that_cancels_still_gives_nan_where_it_is_not_finite(name: str) -> None:
    text = spec("m = p - (p + g)", "p = p - lr * m", states='m=state("exp_avg")')
    algorithm = read_text(text)
    param = torch.tensor([1.0, torch.nan, torch.inf], dtype=torch.float64)
    arguments = ({"lr": 0.1, "maximize": False}, param, torch.ones_like(param), {})

    _, expected = evaluate(algorithm, *arguments)
    _, found = run_plan(PASSES[name](algorithm), *arguments)

    assert expected["exp_avg"].isnan().tolist() == [False, True, True]
    torch.testing.assert_close(found["exp_avg"], expected["exp_avg"], equal_nan=True)


OPTIONS_BY_NAME = {
    "Adam": ({}, {"weight_decay": 0.1}, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "NAdam": ({}, {"weight_decay": 0.1}, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RAdam": ({}, {"betas": (0.5, 0.6)}),
    "Adamax": ({}, {"weight_decay": 0.1}),
    "Adadelta": ({}, {"weight_decay": 0.1}),
    "Adagrad": ({}, {"weight_decay": 0.1, "lr_decay": 0.1}),
    "ASGD": ({}, {"weight_decay": 0.1, "t0": 5, "lambd": 0.1}),
    "Rprop": ({}, {"step_sizes": (1e-3, 0.1)}),
    "RMSprop": ({}, {"momentum": 0.9, "centered": True}),
    "SGD": ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
}


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("name", [*RULES, *WIDENING_RULES])
def test_every_pass_steps_the_catalogue_as_the_oracle(
    name: str, passes: str, dtype: torch.dtype
) -> None:
    algorithm = (RULES | WIDENING_RULES)[name]
    planned = PASSES[passes](algorithm)
    for options in OPTIONS_BY_NAME.get(name, ({},)):
        hypers = defaults(algorithm) | options
        expected = trajectory(
            lambda *args: evaluate(algorithm, *args, scalar_dtype=dtype), hypers, 3, steps=20
        )
        found = trajectory(
            lambda *args: run_plan(planned, *args, scalar_dtype=dtype), hypers, 3, steps=20
        )
        for value, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-13)
            assert value.ndim or torch.equal(value, wanted), "scalar state has other bits"

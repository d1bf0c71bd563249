"""Test that row and column states in float32 lose no digits of the numbers that scale them.

`1 - beta2` is small: computed in float32 it is wrong by many units in the last place. So each
lowering computes numbers in float64, before it rounds them to the dtype of rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lowerings.oracle_steps import ComparedStep, random_tensors, rule_of, steps_beside_the_oracle
from lowerings.test_fused_cpu import compiler_output, cpp_of
from spec_files import spec_file
from torch import Tensor
from torch.nn import Parameter

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec

LOWERINGS = ["forloop", "foreach", "fused_cpu"]
RULES = ["adam_mini", "came", "adafactor", "adafactor_hf"]
LONG_RUNS = ["adam_mini", "came"]
CLASHES = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def Clashes(
    p, g, t, /,
    row=state("row", shape="row", when="factored"),
    scalar=state("scalar"),
    *,
    lr=hyper(1e-2),
    beta=hyper(0.999),
    one_minus_beta=hyper(0.5),
    limit=hyper(2.0, optional=True),
    applies=flag(True),
):
    """A rule whose names are those of constants, with numbers from flags and reductions."""
    scalar = beta * scalar + (1 - one_minus_beta) * g
    length = rms(scalar)
    if factored(p):
        row = beta * row + (1 - beta) * row_mean(g**2)
        if applies:
            row = row * (1 - 0.001 * length)
        if limit is not None:
            row = minimum(row, limit + sqrt(length) * t)
        u = scalar / sqrt(row / (1 - beta**t) + where(t > 2, lr * beta, length / 7))
    else:
        u = scalar
    p = p - lr * u
'''
ONE_STEP = 5e-7
"""The largest relative error after one step: about four roundings to float32."""
BOUNDS = {torch.float32: ONE_STEP, torch.float64: 1e-14}
"""In float64 the oracle's sum of 131 squares rounds as often as that of the lowering."""
STEPS = 50
SHAPE = (37, 131)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", RULES)
def test_rows_and_columns_have_the_digits_of_float32_after_a_step(name: str, lowering: str) -> None:
    (step,) = steps_beside_the_oracle(spec_file(name), lowering, torch.float32, num_steps=1)
    errors = dict(errors_of_lines(step))
    assert errors
    assert max(errors.values()) < ONE_STEP, errors


def errors_of_lines(step: ComparedStep) -> Iterator[tuple[str, float]]:
    """Yield the relative error of each state that has one number for a row or a column."""
    for key, value in step.state.items():
        if value.dim() and value.numel() < step.param.numel():
            yield key, largest_relative_error(value, step.expected_state[key])


def largest_relative_error(found: Tensor, right: Tensor) -> float:
    right = right.double().reshape(found.shape)
    return float(((found.double() - right).abs() / right.abs()).max())


@pytest.mark.parametrize("name", LONG_RUNS)
def test_errors_of_many_steps_are_those_of_the_for_loop(name: str) -> None:
    path = spec_file(name)
    found = {lowering: trained(path, lowering) for lowering in ("forloop", "fused_cpu")}
    right = right_state(path)
    for key, value in found["fused_cpu"].items():
        if not value.dim() or value.shape == SHAPE:
            continue
        error, allowed = (
            largest_relative_error(found[lowering][key], right[key])
            for lowering in ("fused_cpu", "forloop")
        )
        assert error <= 1.5 * allowed, (key, error, allowed)


def trained(path: Path, lowering: str) -> dict[str, Tensor]:
    """Return the state after many steps in float32."""
    start, *grads = random_tensors(STEPS + 1, torch.float32, shape=SHAPE)
    param = Parameter(start)
    optimizer = optgen.load(path)([param])
    with use_lowering(lowering):
        for grad in grads:
            param.grad = grad
            optimizer.step()
    return dict(optimizer.state[param])


def right_state(path: Path) -> dict[str, Tensor]:
    """Return the oracle's state after the same steps in float64."""
    value, *grads = (t.double() for t in random_tensors(STEPS + 1, torch.float32, shape=SHAPE))
    rule, state = rule_of(path), dict[str, Any]()
    hypers = optgen.load(path)([Parameter(torch.ones(2, 2))]).param_groups[0]
    hyper_values = {h.name: hypers.get(h.name, h.default) for h in rule.hypers}
    for grad in grads:
        value, state = evaluate(rule, hyper_values, value, grad, state)
    return {key: torch.as_tensor(x) for key, x in state.items()}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("limit", [2.0, None])
def test_constants_of_loops_have_names_of_their_own(
    dtype: torch.dtype, applies: bool, limit: float | None
) -> None:
    source = Spec("Clashes", CLASHES, "Clashes.py", 1)
    bound = BOUNDS[dtype]
    for step in steps_beside_the_oracle(source, "fused_cpu", dtype, applies=applies, limit=limit):
        assert max(error for _, error in errors_of_lines(step)) < bound
        torch.testing.assert_close(
            step.param.double(), step.expected_param.double(), rtol=bound, atol=bound
        )


def test_constants_of_loops_are_all_read(tmp_path: Path) -> None:
    assert compiler_output(cpp_of(CLASHES, "Clashes"), tmp_path, "-Wall", "-Wextra") == ""

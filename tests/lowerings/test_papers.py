"""Test published rules against steps that are written from their papers, in every lowering."""

from __future__ import annotations

import pytest
import torch
from interpreter import INTERPRETED, inside_interpreter, outside_interpreter, run_inside
from lowerings.papers import PAPERS, Own, drawn
from spec_files import loaded

from optgen import use_lowering

LOWERINGS = ("forloop", "foreach", "fused_cpu")
STEPS = 10 if INTERPRETED else 30
KEYS = {
    "novograd": {"exp_avg": "m", "exp_avg_sq": "v"},
    "stablespam": {"exp_avg": "m", "m_norm_t": "a", "v_norm_t": "b", "m_max_t": "top"},
    "amos": {"exp_avg_sq": "v", "decay": "d"},
    "adam_mini": {"m": "m", "vmean": "r", "v": "v"},
    "adam_h": {"exp_avg": "m", "exp_avg_sq": "v"},
    "madgrad": {"grad_sum_sq": "v", "s": "s", "x0": "x0"},
    "sm3": {"row_max": "r", "col_max": "c", "sum": "v", "momentum_buffer": "m"},
}
"""The keys of states, with the names of the same values in the steps from papers.

A parameter has a state if the step keeps this value for it. Other steps have the keys themselves.
"""


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", PAPERS)
def test_equal_to_the_paper(name: str, lowering: str) -> None:
    follow_the_paper(name, lowering)


@inside_interpreter
@pytest.mark.parametrize("name", PAPERS)
def test_kernels_equal_the_paper(name: str) -> None:
    follow_the_paper(name, "fused_triton")


@outside_interpreter
def test_in_the_interpreter() -> None:
    run_inside(__file__)


def follow_the_paper(name: str, lowering: str) -> None:
    """Check the steps of a lowering, and the states that they leave."""
    assert largest_error(name, lowering) <= 1e-10


def largest_error(name: str, lowering: str) -> float:
    """Return the largest difference of an element from the paper; check the states."""
    spec, step_of, options = PAPERS[name]
    right = drawn(100)
    params = [p.clone() for p in right]
    optimizer = loaded(spec)(params, **options)
    own: list[Own] = [{} for _ in params]
    for step in range(STEPS):
        grads = drawn(step)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        with use_lowering(lowering):
            optimizer.step()
        right = [step_of(*each) for each in zip(right, grads, own, strict=True)]
    for param, values in zip(params, own, strict=True):
        state = optimizer.state[param]
        for key, symbol in KEYS.get(spec, {key: key for key in state if key != "step"}).items():
            expected = values.get(symbol)
            if expected is not None:
                expected = torch.as_tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(state.get(key), expected, rtol=1e-10, atol=1e-14)
    return max((p - r).abs().max().item() for p, r in zip(params, right, strict=True))

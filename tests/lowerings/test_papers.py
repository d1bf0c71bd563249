"""Test rules of tests/specs against steps that are written from their papers, in every lowering."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from interpreter import INTERPRETED, inside_interpreter, outside_interpreter, run_inside
from lowerings.papers import PAPERS, Own, drawn

import optgen
from optgen import use_lowering

SPECS = Path(__file__).parent.parent / "specs"
LOWERINGS = ("forloop", "foreach", "fused_cpu")
STEPS = 10 if INTERPRETED else 30
KEYS = {
    "novograd": {"exp_avg": "m", "exp_avg_sq": "v"},
    "stablespam": {"exp_avg": "m", "m_norm_t": "a", "v_norm_t": "b", "m_max_t": "top"},
    "amos": {"exp_avg_sq": "v", "decay": "d"},
    "adammini": {"m": "m", "vmean": "v"},
    "adam_h": {"exp_avg": "m", "exp_avg_sq": "v"},
    "madgrad": {"grad_sum_sq": "v", "s": "s", "x0": "x0"},
    "sm3": {"row_max": "r", "col_max": "c", "sum": "v", "momentum_buffer": "m"},
}
"""The keys of states, with the names of the same values in the steps from papers.

A parameter has a state if the step keeps this value for it.
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
    step_of, options = PAPERS[name]
    right = drawn(100)
    params = [p.clone() for p in right]
    optimizer = optgen.load(SPECS / f"{name}.py")(params, **options)
    own: list[Own] = [{} for _ in params]
    for step in range(STEPS):
        grads = drawn(step)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        with use_lowering(lowering):
            optimizer.step()
        right = [step_of(*each) for each in zip(right, grads, own, strict=True)]
    for param, expected, values in zip(params, right, own, strict=True):
        torch.testing.assert_close(param, expected, rtol=0, atol=1e-10)
        for key, symbol in KEYS[name].items():
            found = optimizer.state[param].get(key)
            torch.testing.assert_close(found, values.get(symbol), rtol=1e-12, atol=1e-300)

"""Test rules that share numbers between parameters against steps written from their papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowerings.papers import drawn
from lowerings.wide_papers import WIDE_PAPERS, Own
from spec_files import loaded

from optgen import use_lowering

LOWERINGS = ("forloop", "foreach", "fused_cpu")


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", WIDE_PAPERS)
def test_equal_to_the_paper(name: str, groups: int, lowering: str) -> None:
    assert largest_error(name, groups, lowering) <= 1e-10


def largest_error(name: str, groups: int, lowering: str) -> float:
    """Return the largest difference of an element from the paper; check the states."""
    step_of, options = WIDE_PAPERS[name]
    right = drawn(100)
    params = [p.clone() for p in right]
    listed = [{"params": params[group::groups]} for group in range(groups)]
    optimizer: Any = loaded(name)(listed, **options)
    own: Own = {}
    for step in range(30):
        grads = drawn(step)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.clone()
        with use_lowering(lowering):
            optimizer.step()
        right = step_of(right, grads, own)
    for index, param in enumerate(params):
        for key in optimizer.state[param].keys() - {"step"}:
            found = optimizer.state[param][key]
            torch.testing.assert_close(found, own[key][index], rtol=1e-10, atol=1e-300)
    for group in optimizer.param_groups:
        for state in type(optimizer).rule.group_states:
            assert group[state.key].item() == pytest.approx(own[state.key], rel=1e-10)
    return max((p - r).abs().max().item() for p, r in zip(params, right, strict=True))

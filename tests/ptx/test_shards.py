"""Test that compiled kernels step shards: two ranks, each with an emulated device."""

from __future__ import annotations

import pytest
import torch
from interpreter import outside_interpreter
from torch import distributed

pytest.importorskip("triton")

from distributed import pair
from distributed.sharded_and_whole import OPTIONS, Comparison, optimizer_class

from ptx.emulate import emulated

pytestmark = [
    outside_interpreter,
    pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed"),
]

SHAPES = (((33, 140), 0), ((5, 3), 1), ((1, 6), 0), ((3, 4, 5), 1))


def _error_and_folds(rank: int, name: str) -> tuple[float, list[str]]:
    """Return the error of two steps, and the folds that they have launched."""
    with emulated() as device:
        comparison = Comparison(optimizer_class(name), OPTIONS[name], SHAPES, torch.float64)
        for number in range(2):
            comparison.step("fused_triton", without_grad=number if number else None)
    return comparison.error(), [each for each in device.launches if "fold" in each]


@pytest.mark.thorough
@pytest.mark.one_case_in(1, thorough=2)
@pytest.mark.parametrize("name", ["Adafactor", "Peaks"])
def test_two_ranks_step_as_one_process(name: str) -> None:
    for error, folds in pair.run(_error_and_folds, name, limit=200.0):
        assert error <= 1e-12
        assert "fold_lines" in folds

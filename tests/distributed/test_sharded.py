"""Test that parameters sharded over two ranks in every way step as in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import (
    CASE_OF_CLASS,
    ELEMENTWISE,
    PLACED_SHAPES,
    cases,
    difference,
    gradients,
    shard,
)
from parity.cases import LOWERINGS, Case
from parity.classes import COMPLEX_CLASSES
from torch import distributed, nn

from optgen import use_lowering

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


class _Comparison:
    """Two optimizers of equal parameters: sharded over two ranks, and whole in this process."""

    def __init__(self, case: Case, dtype: torch.dtype, *mesh: int) -> None:
        self.mesh = distributed.init_device_mesh("cpu", mesh or (2,))
        drawn = [torch.randn(shape, dtype=dtype) for shape, _ in PLACED_SHAPES]
        self.alone = [nn.Parameter(value.clone()) for value in drawn]
        self.sharded = [
            nn.Parameter(shard(value, placement, self.mesh))
            for value, (_, placement) in zip(drawn, PLACED_SHAPES, strict=True)
        ]
        self.ours, self.reference = (
            case.ours([{"params": params[:5]}, {"params": params[5:7], "lr": 0.02}])
            for params in (self.sharded, self.alone)
        )

    def train(self) -> float:
        """Take five steps, the last parameters from the third on; return the largest difference."""
        for step in range(5):
            if step == 2:
                self.ours.add_param_group({"params": self.sharded[7:]})
                self.reference.add_param_group({"params": self.alone[7:]})
            grads = gradients(step, self.alone[0].dtype)
            for ours, alone, (_, placement), grad in zip(
                self.sharded, self.alone, PLACED_SHAPES, grads, strict=True
            ):
                alone.grad = grad
                ours.grad = None if grad is None else shard(grad, placement, self.mesh)
            self.ours.step()
            self.reference.step()
        return self._difference()

    def _difference(self) -> float:
        results = []
        for ours, alone in zip(self.sharded, self.alone, strict=True):
            results.append(difference(ours.detach(), alone.detach()))
            states, expected = self.ours.state[ours], self.reference.state[alone]
            assert list(states) == list(expected)
            for key, value in expected.items():
                results.append(difference(states[key], value))
                if value.shape == alone.shape and alone.dim():
                    assert getattr(states[key], "placements", 0) == getattr(ours, "placements", 0)
        return max(results)


def _differences(
    rank: int, cases_of_class: list[Case], dtype: torch.dtype, *lowerings: str
) -> dict[str, float]:
    """Return the difference to one process of every case through every lowering."""
    results = {}
    for case in cases_of_class:
        for lowering in lowerings:
            with use_lowering(lowering):
                results[f"{case} {lowering}"] = _Comparison(case, dtype).train()
    return results


def _differences_on_meshes(rank: int, name: str) -> dict[str, float]:
    meshes = [(1, 2), (2, 1)]
    return {
        f"mesh {mesh}": _Comparison(CASE_OF_CLASS[name], torch.float32, *mesh).train()
        for mesh in meshes
    }


def _check_equal(function: Callable[..., Any], *args: Any) -> None:
    for found in pair.run(function, *args):
        assert found
        assert {way: value for way, value in found.items() if value} == {}


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_two_ranks_step_as_one_process(name: str) -> None:
    _check_equal(_differences, cases(name), torch.float32, *LOWERINGS)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", [name for name in ELEMENTWISE if name in COMPLEX_CLASSES])
def test_complex_shards_equal_one_process(name: str) -> None:
    _check_equal(_differences, [CASE_OF_CLASS[name]], torch.complex64, *LOWERINGS)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_sixteen_bit_shards_equal_one_process(name: str) -> None:
    # torch's operations, and so the other lowerings, round the last few elements of a tensor
    # differently. Which elements these are depends on the sharding.
    _check_equal(_differences, [CASE_OF_CLASS[name]], torch.bfloat16, "fused_cpu")


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_meshes_that_replicate_and_shard_equal_one_process(name: str) -> None:
    _check_equal(_differences_on_meshes, name)

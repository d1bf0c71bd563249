"""Test that rules with reductions step shards as one process steps whole parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from distributed import pair
from distributed.sharded_and_whole import (
    LOWERINGS,
    OPTIONS,
    Comparison,
    optimizer_class,
    shapes_of,
    states_that_differ,
)
from torch import distributed, nn

from optgen.optim import Adafactor
from optgen.runtime.fused_cpu.kernel_loader import load_kernel
from optgen.runtime.toolchain.dtype_variants import bits_of_dtypes

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def _errors_after_training(
    rank: int, cls: Any, options: Any, shapes: Any, lowering: str
) -> dict[str, float]:
    """Return errors, in units of their bounds, by dtype and mesh.

    In fused C++ one kernel for both dtypes is built first. Adafactor's is built for one dtype and
    then for both.
    """
    results = {}
    dtypes_and_meshes: list[Any] = [(torch.float64, ()), (torch.float32, ())]
    if cls is Adafactor:
        dtypes_and_meshes.append((torch.float64, (1, 2)))
    for dtype, mesh in dtypes_and_meshes:
        comparison = Comparison(cls, options, shapes, dtype, *mesh)
        if lowering == "fused_cpu" and cls is not Adafactor:
            for is_sharded in (False, True):
                load_kernel(comparison.ours, bits_of_dtypes(TOLERANCE), is_sharded)
        for _ in range(4):
            comparison.step(lowering, without_grad=int(torch.randint(len(shapes), ())))
        results[f"{dtype} {mesh}"] = comparison.error() / TOLERANCE[dtype]
    return results


# The for-loop runs foreach's sharded function: one rule is enough to test this.
COMBINATIONS = [
    (name, way) for name in OPTIONS for way in LOWERINGS if way != "forloop" or name == "Muon"
]


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize(("name", "lowering"), COMBINATIONS)
def test_two_ranks_step_as_one_process(name: str, lowering: str) -> None:
    for found in pair.run(
        _errors_after_training, optimizer_class(name), OPTIONS[name], shapes_of(name), lowering
    ):
        assert {way: error for way, error in found.items() if error > 1} == {}


def test_facts_are_those_of_the_whole_parameters_shape() -> None:
    shapes = [((6, 4), 0), ((4, 6), 1)]
    for found in pair.run(_errors_after_training, optimizer_class("Tall"), {}, shapes, "foreach"):
        assert max(found.values()) <= 1


@pytest.mark.parametrize("last", [math.nan, -math.inf], ids=str)
@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
def test_maxima_of_all_ranks_keep_nan_and_infinity(lowering: str, last: float) -> None:
    for found in pair.run(
        states_that_differ, optimizer_class("SM3"), shapes_of("SM3"), lowering, last
    ):
        assert found == []


def _column_major_error(rank: int, dtype: torch.dtype) -> float:
    """Return the error of shards in column-major memory; the whole parameters are row-major."""
    from torch.distributed.tensor import DTensor

    shapes: Any = [((8, 4), 0), ((9, 8), 1), ((40, 70), 0)]
    comparison = Comparison(Adafactor, {}, shapes, dtype)
    for index, param in enumerate(comparison.sharded):
        column_major = param.to_local().mT.contiguous().mT
        transposed = nn.Parameter(
            DTensor.from_local(column_major, comparison.mesh, param.placements)
        )
        assert not transposed.to_local().is_contiguous()
        comparison.sharded[index] = transposed
    comparison.ours = Adafactor(comparison.sharded, lr=0.005)
    comparison.reference = Adafactor(comparison.alone, lr=0.005)
    for _ in range(3):
        comparison.step("fused_cpu")
    return comparison.error()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 2**-7)])
def test_column_major_shards_equal_one_process(dtype: torch.dtype, bound: float) -> None:
    for error in pair.run(_column_major_error, dtype):
        assert error <= bound

"""Test fused C++ steps of long thin matrices: their results, and their temporary memory."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from parity.trajectories import random_values
from runtime.fused_cpu.test_phases import (
    Shape,
    check_against_rule,
    check_unscaled_once,
    load_rule,
    many_reductions,
    restore_thread_count,
    take_steps,
)
from runtime.fused_cpu.test_suspending_kernel import check_against_whole_parameters
from torch.nn import Parameter

from benchmarks import cpu_peak_memory
from optgen.ir.algorithm import Algorithm
from optgen.optim import Adafactor
from optgen.runtime.fused_cpu import kernel_loader

__all__ = ["many_reductions", "restore_thread_count"]  # fixtures

LIMIT_IN_CPP = "constexpr i64 MANY_AXIS_VALUES = 1 << 18,"
TALL_SHAPES = [(5000, 1), (4100, 3), (700, 129), (70, 4096), (3, 90, 50)]
FLAT_SHAPES = [(1, 5000), (3, 4100), (130, 140), (2, 40_000), (3, 50, 90)]
OTHER_SHAPES = [(257, 300), (5, 64, 64), (2, 3), (1, 1), (700,)]
CUTS = [((2,), (-2,)), ((2,), (-1,)), ((2, 2), (-2, -1))]


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build kernels whose limit on row and column values is 100, instead of 2**18."""

    original = kernel_loader.inline_includes

    def inline_includes(source: str) -> str:
        text = original(source)
        assert LIMIT_IN_CPP in text
        return text.replace(LIMIT_IN_CPP, "constexpr i64 MANY_AXIS_VALUES = 100,")

    monkeypatch.setattr(kernel_loader, "inline_includes", inline_includes)
    monkeypatch.setattr(kernel_loader, "_kernels", weakref.WeakKeyDictionary())


@pytest.mark.one_case_in(2)
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("name", ["adafactor", "came"])
def test_thin_matrices_follow_the_rule(name: str) -> None:
    shapes = [*TALL_SHAPES, *FLAT_SHAPES, *OTHER_SHAPES]
    accepted = shapes if name == "adafactor" else [s for s in shapes if len(s) == 2]
    check_against_rule(load_rule(name), accepted, 1e-12)


@pytest.mark.usefixtures("low_limit")
def test_thin_matrices_follow_a_rule_with_many_reductions(
    many_reductions: tuple[Any, Algorithm],
) -> None:
    shapes = [shape for shape in (*TALL_SHAPES, *FLAT_SHAPES, *OTHER_SHAPES) if len(shape) > 1]
    check_against_rule(many_reductions, shapes, 1e-12, momentum=0.9, scaled=True)


@pytest.mark.one_case_in(6)
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize(("mesh", "axes"), CUTS, ids=str)
@pytest.mark.parametrize("name", ["adafactor", "many_reductions"])
def test_shards_of_thin_matrices_step_like_whole_parameters(
    name: str, mesh: tuple[int, ...], axes: tuple[int, ...], many_reductions: tuple[Any, Algorithm]
) -> None:
    """All ranks choose the same strategy, even ranks without elements."""
    cls, _ = many_reductions if name == "many_reductions" else load_rule(name)
    check_against_whole_parameters(cls, [*TALL_SHAPES, *FLAT_SHAPES, (3, 3)], mesh, axes)


@pytest.mark.usefixtures("low_limit", "restore_thread_count")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_have_the_same_bits_for_any_number_of_threads(dtype: torch.dtype) -> None:
    """The kernel uses several threads from 16 MB on."""
    shapes = [*TALL_SHAPES, *FLAT_SHAPES, (1, 2_000_000), (600_000, 3), (30, 20_000), (20_000, 130)]
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        optimizer = Adafactor([Parameter(value) for value in random_values(shapes, dtype, 0)])
        params = take_steps(optimizer, 2)
        results.append([*params, *(s for p in params for s in optimizer.state[p].values())])
    assert all(map(torch.equal, *results))


@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("shape", [(5000, 1), (1, 5000), (700, 129), (5, 900)], ids=str)
def test_gradients_are_unscaled_once(shape: Shape) -> None:
    check_unscaled_once(shape)


@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("shape", [(5000, 1), (1, 5000), (700, 129), (5, 900)], ids=str)
def test_16_bit_parameters_are_rounded_once(shape: Shape) -> None:
    """The result is a float32 step from the same numbers, rounded once at its end."""
    (start,), (grad,) = (
        random_values([shape], torch.bfloat16, 1),
        random_values([shape], torch.bfloat16, 2),
    )
    param_16_bits, param_32_bits = Parameter(start.clone()), Parameter(start.float())
    param_16_bits.grad, param_32_bits.grad = grad.clone(), grad.float()
    optimizers = (
        Adafactor([param_16_bits], eps=(1e-7, 1e-3)),
        Adafactor([param_32_bits], eps=(1e-7, 1e-3)),
    )
    for optimizer in optimizers:
        optimizer.step()

    assert torch.equal(param_16_bits, param_32_bits.to(torch.bfloat16))
    for key, found in optimizers[0].state[param_16_bits].items():
        assert torch.equal(found, optimizers[1].state[param_32_bits][key].to(found.dtype)), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 2_000_000), (2_000_000, 1), (3, 1_000_000)], ids=str)
def test_memory_does_not_grow_with_the_longer_side(shape: Shape, dtype: torch.dtype) -> None:
    """The measured memory does not include the states, which are created before."""
    param = Parameter(torch.ones(shape, dtype=dtype))
    param.grad = torch.ones_like(param)
    optimizer = Adafactor([param])
    optimizer.init_state()
    take_steps(Adafactor([Parameter(torch.ones(3, 3, dtype=dtype))]), 2)  # builds the kernel
    assert cpu_peak_memory.peak_growth(optimizer.step, 2) < 4e6  # bytes

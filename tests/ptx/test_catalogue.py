"""Test the checked-in kernels: compiled for sm_90, and run on an emulated device."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from interpreter import outside_interpreter
from torch import Tensor

pytest.importorskip("triton")

from fuzz.trial import Setting, StepCounts, run

from benchmarks.triton_aot_compile import example_hypers, flags_of, shapes_of_lists
from benchmarks.triton_catalogue import classes, function, functions
from optgen import compose, modifiers, use_lowering
from optgen.runtime.backends import backend
from optgen.runtime.tensors.quantized import to_numbers
from ptx.emulate import Device, emulated
from ptx.situations import (
    SHAPES,
    STEPS,
    Situation,
    accepts,
    rule_of,
    trained,
)

pytestmark = outside_interpreter

SPARSE = ("RowWiseAdagrad", "SparseAdam")
"""Classes whose gradients are sparse: the oracle takes dense ones."""
FOUND = ("RMSpropTF", "RowWiseAdagrad")
"""RMSpropTF did not compile without momentum; finishes stored states that threads still loaded."""
FLOAT32_ROUNDINGS = 16
"""The difference allowed to fused C++ after two steps, in float32 roundings of the largest element.

The largest that was found is 6.4, of CAME; AdafactorHF has 4.9, and all others have at most 4.
The kernels round a product and a sum once, and C++ rounds both. Numbers of 16 bits are rounded
from float32, so they may then differ by one unit in the last place in each step.
"""
BFLOAT16_ROUNDINGS = 1
"""The difference in bfloat16 roundings, for rules whose matrix products are in bfloat16.

An operand that differs by a float32 rounding may be rounded to its neighbour. None was.
"""
STATES_DIFFER = (
    *("KahanAdamW", "ScheduleFreeAdamW", "ScheduleFreeRAdam", "ScheduleFreeSGD"),
    *("AdaSmooth", "Aida"),  # differences of parameters, and of nearly equal numbers
)
"""Classes of which only parameters are compared with fused C++: they keep a rounding's error."""
SIGNS_OF_ROUNDINGS = ("FOCUS",)
"""Classes that are not compared with fused C++: a first step has the sign of p minus its mean, p.

In float64 they are compared with the oracle, which leaves out what rounding may turn.
"""


@pytest.mark.one_case_in(30, thorough=4)
@pytest.mark.parametrize("has_flags", [False, True], ids=["plain", "flags"])
@pytest.mark.parametrize("name", [name for name in classes() if name not in SPARSE])
def test_steps_in_float64_are_those_of_the_oracle(name: str, has_flags: bool) -> None:
    rule = rule_of(name)
    flags = flags_of(rule.cls) if has_flags else {}
    if has_flags and not flags:
        pytest.skip("the class has no optional states")
    shapes = tuple(shape for shape in SHAPES if accepts(rule.cls, shape))
    counts = StepCounts()
    with emulated() as device:
        findings = run(rule, Setting(flags, shapes, "float64"), ("fused_triton",), counts)
    assert [finding.message for finding in findings] == []
    assert counts.compared
    assert device.launches


@pytest.mark.one_case_in(120, thorough=6)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", classes())
def test_steps_are_those_of_fused_cpp_and_need_no_order_of_blocks(name: str, dtype: str) -> None:
    check_against_fused_cpp(name, dtype)


@pytest.mark.parametrize("name", FOUND)
def test_classes_in_which_the_interpreter_found_faults(name: str) -> None:
    check_against_fused_cpp(name, "float32")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.thorough)])
def test_codes_of_4_bits_are_those_of_fused_cpp(dtype: str) -> None:
    """Sizes are odd, too: a byte at the end of a tensor then holds one code.

    Gradients in bfloat16 have so few digits that numbers lie halfway between two codes.
    """
    check_class(compose("adamw", modifiers.quantized("4bit", block=64, min_elements=0)), dtype)


def check_against_fused_cpp(name: str, dtype: str) -> None:
    has_bfloat16_products = rule_of(name).algorithm.has_matrix_ops  # Newton and Schulz, by torch
    check_class(classes()[name], dtype, has_bfloat16_products, name not in STATES_DIFFER)


def check_class(
    cls: Any, dtype: str, has_bfloat16_products: bool = False, compares_states: bool = True
) -> None:
    """Compare steps with those of fused C++, in two orders of blocks.

    In float32 tensors are misaligned, and a scaler unscales gradients and skips a step.
    """
    is_float32 = dtype == "float32"
    situation = Situation(getattr(torch, dtype), is_misaligned=is_float32, is_scaled=is_float32)
    params, states = on_device(cls, situation, 1)
    in_another_order = chain(*on_device(cls, situation, 1000))
    assert all(map(torch.equal, map(as_bits, params + states), map(as_bits, in_another_order)))
    if cls.__name__ in SIGNS_OF_ROUNDINGS:
        return
    right = right_earlier = trained(cls, situation, "fused_cpu")
    if not is_float32:  # a moment may cancel what an earlier step has rounded
        right_earlier = trained(cls, situation, "fused_cpu", STEPS - 1)
    compared = slice(2 if compares_states else 1)
    roundings = FLOAT32_ROUNDINGS * torch.finfo(torch.float32).eps
    if has_bfloat16_products:
        roundings = BFLOAT16_ROUNDINGS * torch.finfo(torch.bfloat16).eps
    for tensors in zip(
        *(chain(*each[compared]) for each in ((params, states), right, right_earlier)), strict=True
    ):
        found, right_now, earlier = (to_numbers(tensor).double() for tensor in tensors)
        limit = torch.full_like(right_now, roundings) * right_now.abs().max()
        if (dtype_of_numbers := to_numbers(tensors[1]).dtype).itemsize == 2:
            kind = torch.finfo(dtype_of_numbers)
            limit += STEPS * kind.eps * right_now.abs().maximum(earlier.abs()).clamp(min=kind.tiny)
        assert bool(((found - right_now).abs() <= limit).all()), (cls.__name__, dtype)


def on_device(cls: Any, situation: Situation, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    with emulated(Device(seed)):
        return trained(cls, situation, "fused_triton")


def as_bits(tensor: Tensor) -> Tensor:
    numbers = to_numbers(tensor)
    return numbers.reshape(-1).contiguous().view(torch.uint8)


@pytest.mark.one_case_in(24, thorough=5)
@pytest.mark.parametrize("folder", functions())
def test_functions_over_lists_are_those_of_the_for_loop(folder: str) -> None:
    results = []
    for lowering in ("fused_triton", "forloop"):
        backend("fused_triton")._function_buckets.clear()  # they may be for another target
        results.append(called(folder, lowering))
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-13, atol=1e-14)


def called(folder: str, lowering: str) -> list[Tensor]:
    """Return the lists that a function leaves, in float64."""
    update, generator = function(folder), torch.Generator().manual_seed(3)
    lists = [
        [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1 for shape in shapes]
        for shapes in shapes_of_lists(update, [(600,), (3, 5), (2, 40, 30), ()])
    ]
    with emulated() as device, use_lowering(lowering):
        update(*lists, **example_hypers(update))
    assert bool(device.launches) == (lowering == "fused_triton")
    return [tensor for each in lists for tensor in each]

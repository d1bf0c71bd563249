"""Test cached fused steps with quantized states, which the C++ reader reads."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import compose, modifiers, optim, use_lowering
from optgen.runtime.fused_cpu.gathered_step import prepare_dense
from optgen.runtime.tensors.quantized import QuantizedTensor

SHAPES = ((64, 3), (5, 7), (4, 3, 8, 8), (1,), (257,))
FORMATS = ("8bit", "fp8", "4bit")


def make(dtype: str, seed: int = 0, **options: Any) -> tuple[Any, list[Tensor]]:
    """Return an AdamW with quantized states of all but the smallest parameters."""
    torch.manual_seed(seed)
    params = [torch.randn(shape) for shape in SHAPES]
    quantized = modifiers.quantized(dtype, block=64, min_elements=40)
    return compose(optim.AdamW, quantized)(params, lr=1e-2, **options), params


def steps(
    optimizer: Any, params: list[Tensor], count: int, seed: int = 1, is_gathered: bool = False
) -> None:
    """Take steps on random gradients; with `is_gathered`, repeat no step."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for param in params:
            random = torch.randn(param.shape, generator=generator)
            param.grad = torch.empty_like(param).copy_(random)
        if is_gathered:
            optimizer._context.cached_step = None
        with use_lowering("fused_cpu"):
            optimizer.step()


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each gathered fused step appends its number of batches."""
    counts: list[int] = []

    def record_and_prepare(kernel: Any, optimizer: Any, batches: Any) -> Any:
        counts.append(len(batches))
        return prepare_dense(kernel, optimizer, batches)

    monkeypatch.setattr("optgen.runtime.fused_cpu.backend.prepare_dense", record_and_prepare)
    return counts


def assert_same(ours: tuple[Any, list[Tensor]], theirs: tuple[Any, list[Tensor]]) -> None:
    for param, other in zip(ours[1], theirs[1], strict=True):
        assert torch.equal(param, other)
        for key, value in ours[0].state[param].items():
            other_value = theirs[0].state[other][key]
            assert type(value) is type(other_value)
            if isinstance(value, QuantizedTensor):
                assert torch.equal(value.codes, other_value.codes)
                assert torch.equal(value.scales, other_value.scales)
            else:
                assert torch.equal(value, other_value)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_cached_steps_have_the_bits_of_gathered_steps(
    dtype: str, amsgrad: bool, gathered: list[int]
) -> None:
    ours, theirs = make(dtype, amsgrad=amsgrad), make(dtype, amsgrad=amsgrad)
    steps(*ours, 6)
    assert len(gathered) == 1
    steps(*theirs, 6, is_gathered=True)
    assert len(gathered) == 7
    assert_same(ours, theirs)


@pytest.mark.parametrize("dtype", FORMATS)
def test_an_exchanged_state_is_read_anew(dtype: str, gathered: list[int]) -> None:
    ours, theirs = make(dtype), make(dtype)
    for optimizer, params in (ours, theirs):
        steps(optimizer, params, 2)
    values = ours[0].state[ours[1][2]]
    values["exp_avg"] = values["exp_avg"].clone()
    for optimizer, params in (ours, theirs):
        steps(optimizer, params, 2, seed=2)
    assert len(gathered) == 3
    assert_same(ours, theirs)


@pytest.mark.parametrize(("dtype", "other_map"), [("8bit", "linear"), ("fp8", "dynamic4")])
def test_a_state_of_another_map_is_refused(dtype: str, other_map: str) -> None:
    optimizer, params = make(dtype)
    steps(optimizer, params, 2)
    before = [param.clone() for param in params]
    values = optimizer.state[params[2]]
    values["exp_avg"] = QuantizedTensor.zeros_like(params[2], 64, other_map)
    with pytest.raises(RuntimeError, match="exp_avg has codes in blocks of 64"):
        steps(optimizer, params, 1)
    assert all(map(torch.equal, params, before))


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_state_without_its_memory_is_refused(dtype: str) -> None:
    """Scales lie behind the codes: the storage has room for the codes, and not for all scales."""
    optimizer, params = make(dtype)
    steps(optimizer, params, 2)
    before = [param.clone() for param in params]
    storage = optimizer.state[params[2]]["exp_avg"].untyped_storage()
    storage.resize_(storage.nbytes() - 4)
    with pytest.raises(RuntimeError):
        steps(optimizer, params, 1)
    assert all(map(torch.equal, params, before))


@pytest.mark.parametrize("dtype", FORMATS)
def test_steps_follow_the_order_of_memory(dtype: str) -> None:
    """If a parameter's order changes between steps, codes in the old order end the cached step."""
    ours, theirs = make(dtype), make(dtype)
    for (optimizer, params), is_gathered in ((ours, False), (theirs, True)):
        params[2].data = params[2].to(memory_format=torch.channels_last)
        steps(optimizer, params, 4, is_gathered=is_gathered)
        assert optimizer.state[params[2]]["exp_avg"].stride() == params[2].stride()
    assert_same(ours, theirs)
    params = ours[1]
    before = [param.clone() for param in params]
    params[2].data = params[2].contiguous()
    with pytest.raises(RuntimeError, match="quantized states in another order of memory"):
        steps(*ours, 1)
    assert all(map(torch.equal, params, before))


def test_a_cached_step_keeps_no_state_alive() -> None:
    optimizer, params = make("8bit")
    steps(optimizer, params, 3)
    reference = weakref.ref(optimizer.state[params[0]]["exp_avg"])
    expected = optimizer._context.cached_step._codes
    assert reference() is not None
    assert id(reference()) in expected.addresses
    address = id(reference())
    optimizer.state.clear()
    gc.collect()
    assert reference() is None
    assert address not in expected.addresses

"""Test tensors of 8 bits: their codes, and what operations of torch see."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import torch
from torch import Tensor

from optgen.ir import quantization
from optgen.ir.algorithm import QUANTIZED_BLOCKS, QUANTIZED_MAPS
from optgen.runtime.tensors.quantized import QuantizedTensor, quantized
from optgen.verification.references.eight_bits import SHARES, held

KINDS = list(product((64, 512), QUANTIZED_MAPS))


def drawn(count: int, size: float = 1.0, power: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    normal, share = torch.randn(count, generator=generator), torch.rand(count, generator=generator)
    return size * normal * share**power


@pytest.mark.parametrize(("block", "code_map"), KINDS)
@pytest.mark.parametrize("size", [1.0, 1e-15, 1e30])
def test_numbers_are_the_nearest_shares(block: int, code_map: str, size: float) -> None:
    for count in (1, 63, block, 4001):
        values = drawn(count, size)
        for each in (values, values.abs()):
            made = quantized(each, block, code_map).dequantize()
            torch.testing.assert_close(made, held(each, block, code_map), rtol=1e-6, atol=0)
            defined = quantization.quantized(each, block, code_map)
            torch.testing.assert_close(made, defined, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("block", "code_map"), KINDS)
@pytest.mark.parametrize("size", [1.0, 1e-29, 1e37])
def test_numbers_that_were_decoded_have_the_same_codes(
    block: int, code_map: str, size: float
) -> None:
    for values in (drawn(4001, size), drawn(4001, size).abs()):
        once = quantized(values, block, code_map)
        again = quantized(once.dequantize(), block, code_map)
        assert isinstance(once, QuantizedTensor)
        assert isinstance(again, QuantizedTensor)
        assert torch.equal(once.codes, again.codes)
        assert torch.equal(once.scales, again.scales)


@pytest.mark.parametrize("code_map", QUANTIZED_MAPS)
def test_every_code_is_used_and_read_back(code_map: str) -> None:
    shares = torch.tensor(SHARES[code_map])
    values = 3.0 * torch.cat([shares, -shares])
    made = quantized(values, 256, code_map)
    assert isinstance(made, QuantizedTensor)
    assert made.codes.tolist() == [*range(128), *(-code for code in range(128))]
    torch.testing.assert_close(made.dequantize(), values, rtol=3e-7, atol=0)
    assert made.dequantize()[127] == 3
    assert len({*SHARES[code_map]}) == 128
    assert SHARES[code_map] == sorted(SHARES[code_map])


def test_nan_and_infinity_spoil_their_block_only() -> None:
    values = drawn(640)
    values[3], values[100], values[200] = torch.nan, torch.inf, 1e38
    values[256:320] *= 1e-32
    made = quantized(values, 64, "dynamic").dequantize()
    assert made[:256].view(4, 64).isnan().all(dim=1).tolist() == [True, True, False, True]
    assert torch.equal(made[256:320], torch.zeros(64))
    assert made[320:].isfinite().all()
    assert torch.equal(made.isnan(), quantization.quantized(values, 64, "dynamic").isnan())


def test_denominators_do_not_become_zero() -> None:
    squares = torch.tensor([1.0, 1e-12, 0.0])
    for code_map in QUANTIZED_MAPS:
        made = quantized(squares, 64, code_map).dequantize()
        assert (made > 0).tolist() == [True, True, False]
        signed = quantized(torch.tensor([1.0, 1e-12, -1.0]), 64, code_map).dequantize()
        assert signed[1] == 0


def test_memory_follows_that_of_the_parameter() -> None:
    param = drawn(8 * 3 * 5 * 5).view(8, 3, 5, 5).to(memory_format=torch.channels_last)
    made = quantized(param, 64, "dynamic")
    assert made.shape == param.shape
    assert made.stride() == param.stride() == made.dequantize().stride()
    in_order = held(param.permute(0, 2, 3, 1).contiguous(), 64).permute(0, 3, 1, 2)
    torch.testing.assert_close(made.dequantize(), in_order, rtol=1e-6, atol=0)
    assert quantized(param[:, ::2], 64, "linear").dequantize().shape == (8, 2, 5, 5)


def test_operations_see_numbers() -> None:
    values = drawn(5000).view(50, 100)
    made = quantized(values, 256, "dynamic")
    numbers = made.dequantize()  # type: ignore[no-untyped-call]
    assert torch.equal(made.exp(), numbers.exp())
    assert torch.equal(made.T, numbers.T)
    for result in (made + 0, made.float(), made.detach(), made.data, made.to(torch.float)):
        assert type(result) is Tensor
        assert torch.equal(result, numbers)
    assert made.mean() == numbers.mean()
    assert torch.stack([made, made]).shape == (2, 50, 100)
    assert made.double().dtype == torch.float64
    assert str(made).startswith("QuantizedTensor(tensor([[")
    with pytest.raises(TypeError, match="cannot be `out`"):
        torch.add(numbers, 1, out=made)


def test_operations_in_place_encode_their_result() -> None:
    made = quantized(drawn(5000), 256, "dynamic")
    other = drawn(5000, 2.0, 1)
    assert made.copy_(other) is made
    torch.testing.assert_close(made.dequantize(), held(other), rtol=1e-6, atol=0)
    made.mul_(2)
    torch.testing.assert_close(made.dequantize(), held(2 * other), rtol=1e-6, atol=0)
    torch._foreach_copy_([made], [other])
    torch.testing.assert_close(made.dequantize(), held(other), rtol=1e-6, atol=0)
    made[:256] = 3.0
    assert made[:256].unique().tolist() == [3.0]
    made *= 0
    assert isinstance(made, QuantizedTensor)
    assert not made.dequantize().any()
    with pytest.raises(RuntimeError, match=r"shape \(3,\) does not fit \(5000,\)"):
        made.quantize_(torch.ones(3))


def test_assigned_data_are_encoded() -> None:
    """Memory of another size or dtype never stands behind the codes."""
    tensor = quantized(drawn(100), 64, "dynamic")
    before, codes = tensor.dequantize(), tensor.codes.clone()
    tensor.data = before.clone()
    assert torch.equal(tensor.codes, codes)
    tensor.data = torch.zeros(100)
    assert not tensor.dequantize().any()
    with pytest.raises(RuntimeError, match="does not fit"):
        tensor.data = torch.zeros(3)
    with pytest.raises(RuntimeError, match="put a new tensor"):
        tensor.data = torch.zeros(100, device="meta")
    assert int(quantized(torch.ones(1), 64, "dynamic")) == 1
    assert torch.sum(input=quantized(torch.ones(4), 64, "dynamic")) == 4


def test_copies_keep_the_codes() -> None:
    made = quantized(drawn(5000), 128, "linear")
    assert isinstance(made, QuantizedTensor)
    pickled: QuantizedTensor = pickle.loads(pickle.dumps(made))
    for each in (copy.deepcopy(made), made.clone(), made.cpu(), made.to("cpu"), pickled):
        assert type(each) is QuantizedTensor
        assert (each.block, each.map) == (128, "linear")
        assert torch.equal(each.codes, made.codes)
        assert torch.equal(each.scales, made.scales)
    copy.deepcopy(made).zero_()
    assert made.dequantize().any()


def test_memory_is_a_quarter() -> None:
    for block in QUANTIZED_BLOCKS:
        made = quantized(drawn(100_000), block, "dynamic")
        assert made.untyped_storage().nbytes() <= (0.27 if block > 64 else 0.28) * 400_000

"""Test tensors of 8 bits: their codes, and the numbers that torch's operations read and write."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import torch
from torch import Tensor

from optgen.contract.quantization import BLOCKS, CODE_MAPS
from optgen.ir.rounding import quantized
from optgen.runtime.state.create import quantize
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.verification.references.eight_bits import SHARES, UNSIGNED_SHARES, round_to_8_bits

BLOCKS_AND_MAPS = list(product((64, 512), CODE_MAPS))


def random_values(count: int, size: float = 1.0, power: int = 5) -> Tensor:
    """Return random numbers times `size`. With a larger `power`, more of them are near zero."""
    generator = torch.Generator().manual_seed(count)
    normal, share = torch.randn(count, generator=generator), torch.rand(count, generator=generator)
    return size * normal * share**power


@pytest.mark.parametrize(("block", "code_map"), BLOCKS_AND_MAPS)
@pytest.mark.parametrize("size", [1.0, 1e-15, 1e30])
def test_a_number_gets_the_code_of_the_nearest_share(
    block: int, code_map: str, size: float
) -> None:
    """A code stands for a share of its block's scale."""
    for count in (1, 63, block, 4001):
        values = random_values(count, size)
        for each in (values, values.abs()):
            decoded = quantize(each, block, code_map).dequantize()
            torch.testing.assert_close(
                decoded, round_to_8_bits(each, block, code_map), rtol=1e-6, atol=0
            )
            oracle = quantized(each, block, code_map)
            torch.testing.assert_close(decoded, oracle, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("block", "code_map"), BLOCKS_AND_MAPS)
@pytest.mark.parametrize("size", [1.0, 1e-29, 1e37])
def test_decoded_numbers_get_the_same_codes_again(block: int, code_map: str, size: float) -> None:
    for values in (random_values(4001, size), random_values(4001, size).abs()):
        first = quantize(values, block, code_map)
        second = quantize(first.dequantize(), block, code_map)
        assert isinstance(first, QuantizedTensor)
        assert isinstance(second, QuantizedTensor)
        assert torch.equal(first.codes, second.codes)
        assert torch.equal(first.scales, second.scales)


@pytest.mark.parametrize("code_map", CODE_MAPS)
def test_every_code_is_used_and_read_back(code_map: str) -> None:
    shares = torch.tensor(SHARES[code_map])
    values = 3.0 * torch.cat([shares, -shares])
    tensor = quantize(values, 256, code_map)
    assert isinstance(tensor, QuantizedTensor)
    if code_map == "dynamic4":
        assert tensor.codes.view(torch.uint8).tolist() == [
            16 * code + code + 1 for code in range(0, 16, 2)
        ]
    else:
        negative = (code - 128 if code_map == "e4m3" else -code for code in range(len(shares)))
        assert tensor.codes.tolist() == [*range(len(shares)), *negative]
    torch.testing.assert_close(tensor.dequantize(), values, rtol=3e-7, atol=0)
    largest = torch.tensor(3.0) * shares[-1]
    torch.testing.assert_close(tensor.dequantize()[len(shares) - 1], largest, rtol=2e-7, atol=0)
    assert len({*SHARES[code_map]}) == len(shares) >= (8 if code_map == "dynamic4" else 127)
    assert SHARES[code_map] == sorted(SHARES[code_map])


def test_codes_of_4_bits_use_16_shares_in_a_block_without_negative_numbers() -> None:
    shares = torch.tensor(UNSIGNED_SHARES["dynamic4"])
    tensor = quantize(torch.cat([3.0 * shares, -shares, torch.ones(33)]), 64, "dynamic4")
    assert isinstance(tensor, QuantizedTensor)
    assert tensor.scales.tolist() == [3.0, -1.0]
    tensor = quantize(3.0 * torch.cat([shares, shares[:1]]), 64, "dynamic4")
    assert isinstance(tensor, QuantizedTensor)
    pairs = [16 * code + code + 1 for code in range(0, 16, 2)]
    assert tensor.codes.view(torch.uint8).tolist() == [*pairs, 0]
    assert tensor.scales.tolist() == [-3.0]
    torch.testing.assert_close(tensor.dequantize()[:-1], 3.0 * shares, rtol=3e-7, atol=0)
    assert len({*UNSIGNED_SHARES["dynamic4"]}) == 16


def test_nan_and_infinity_make_only_their_own_block_nan() -> None:
    values = random_values(640)
    values[3], values[100], values[200] = torch.nan, torch.inf, 1e38
    values[256:320] *= 1e-32
    decoded = quantize(values, 64, "dynamic").dequantize()
    assert decoded[:256].view(4, 64).isnan().all(dim=1).tolist() == [True, True, False, True]
    assert torch.equal(decoded[256:320], torch.zeros(64))
    assert decoded[320:].isfinite().all()
    assert torch.equal(decoded.isnan(), quantized(values, 64, "dynamic").isnan())


def test_small_positive_numbers_decode_to_zero_only_beside_negative_ones() -> None:
    """Second moments, which are denominators, have no negative numbers."""
    squares = torch.tensor([1.0, 1e-12, 0.0])
    for code_map in CODE_MAPS:
        decoded = quantize(squares, 64, code_map).dequantize()
        assert (decoded > 0).tolist() == [True, True, False]
        signed = quantize(torch.tensor([1.0, 1e-12, -1.0]), 64, code_map).dequantize()
        assert signed[1] == 0


def test_codes_have_the_memory_layout_of_the_parameter() -> None:
    param = random_values(8 * 3 * 5 * 5).view(8, 3, 5, 5).to(memory_format=torch.channels_last)
    tensor = quantize(param, 64, "dynamic")
    assert tensor.shape == param.shape
    assert tensor.stride() == param.stride() == tensor.dequantize().stride()
    expected = round_to_8_bits(param.permute(0, 2, 3, 1).contiguous(), 64).permute(0, 3, 1, 2)
    torch.testing.assert_close(tensor.dequantize(), expected, rtol=1e-6, atol=0)
    assert quantize(param[:, ::2], 64, "linear").dequantize().shape == (8, 2, 5, 5)


def test_operations_read_decoded_numbers() -> None:
    values = random_values(5000).view(50, 100)
    tensor = quantize(values, 256, "dynamic")
    decoded = tensor.dequantize()  # type: ignore[no-untyped-call]
    assert torch.equal(tensor.exp(), decoded.exp())
    assert torch.equal(tensor.T, decoded.T)
    for result in (
        tensor + 0,
        tensor.float(),
        tensor.detach(),
        tensor.data,
        tensor.to(torch.float),
    ):
        assert type(result) is Tensor
        assert torch.equal(result, decoded)
    assert tensor.mean() == decoded.mean()
    assert torch.stack([tensor, tensor]).shape == (2, 50, 100)
    assert tensor.double().dtype == torch.float64
    assert str(tensor).startswith("QuantizedTensor(tensor([[")
    with pytest.raises(TypeError, match="cannot be `out`"):
        torch.add(decoded, 1, out=tensor)


def test_operations_in_place_encode_their_result() -> None:
    tensor = quantize(random_values(5000), 256, "dynamic")
    other = random_values(5000, 2.0, 1)
    assert tensor.copy_(other) is tensor
    torch.testing.assert_close(tensor.dequantize(), round_to_8_bits(other), rtol=1e-6, atol=0)
    tensor.mul_(2)
    torch.testing.assert_close(tensor.dequantize(), round_to_8_bits(2 * other), rtol=1e-6, atol=0)
    torch._foreach_copy_([tensor], [other])
    torch.testing.assert_close(tensor.dequantize(), round_to_8_bits(other), rtol=1e-6, atol=0)
    tensor[:256] = 3.0
    assert tensor[:256].unique().tolist() == [3.0]
    tensor *= 0
    assert isinstance(tensor, QuantizedTensor)
    assert not tensor.dequantize().any()
    with pytest.raises(RuntimeError, match=r"shape \(3,\) does not fit \(5000,\)"):
        tensor.quantize_(torch.ones(3))


def test_assigned_data_are_encoded() -> None:
    """An assignment to `data` never replaces the memory of the codes."""
    tensor = quantize(random_values(100), 64, "dynamic")
    before, codes = tensor.dequantize(), tensor.codes.clone()
    tensor.data = before.clone()
    assert torch.equal(tensor.codes, codes)
    tensor.data = torch.zeros(100)
    assert not tensor.dequantize().any()
    with pytest.raises(RuntimeError, match="does not fit"):
        tensor.data = torch.zeros(3)
    with pytest.raises(RuntimeError, match="put a new tensor"):
        tensor.data = torch.zeros(100, device="meta")
    assert int(quantize(torch.ones(1), 64, "dynamic")) == 1
    assert torch.sum(input=quantize(torch.ones(4), 64, "dynamic")) == 4


def test_copies_keep_the_codes() -> None:
    tensor = quantize(random_values(5000), 128, "linear")
    assert isinstance(tensor, QuantizedTensor)
    pickled: QuantizedTensor = pickle.loads(pickle.dumps(tensor))
    for each in (copy.deepcopy(tensor), tensor.clone(), tensor.cpu(), tensor.to("cpu"), pickled):
        assert type(each) is QuantizedTensor
        assert (each.block, each.map) == (128, "linear")
        assert torch.equal(each.codes, tensor.codes)
        assert torch.equal(each.scales, tensor.scales)
    copy.deepcopy(tensor).zero_()
    assert tensor.dequantize().any()


def test_codes_take_a_quarter_of_float32s_memory() -> None:
    for block in BLOCKS:
        tensor = quantize(random_values(100_000), block, "dynamic")
        assert tensor.nbytes == tensor.untyped_storage().nbytes()
        assert tensor.nbytes <= (0.27 if block > 64 else 0.28) * 4 * 100_000
        packed = quantize(random_values(100_001), block, "dynamic4")
        assert packed.nbytes == packed.untyped_storage().nbytes()
        assert packed.nbytes <= (0.5 + 4 / block) * 100_001 + 68


@pytest.mark.parametrize("name", ["block", "map"])
def test_the_format_never_changes(name: str) -> None:
    """A repeated step reads codes as they were when it first saw their tensor."""
    tensor = QuantizedTensor.zeros_like(torch.zeros(64), 64, "dynamic")
    with pytest.raises(AttributeError):
        setattr(tensor, name, getattr(tensor, name))

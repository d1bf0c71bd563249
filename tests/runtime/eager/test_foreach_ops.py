"""Test `scale_`, which multiplies a list by a number exactly; torch rounds the number first."""

import pytest
import torch

from optgen.runtime.eager.rounding import scale_


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1000,), (), (0,)])
def test_every_product_is_rounded_once(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensors = [torch.randn(shape).to(dtype) for _ in range(3)]
    factor = 0.999 if dtype.itemsize == 2 else torch.tensor(0.999, dtype=dtype).item()
    exact = [tensor.double() * factor for tensor in tensors]

    scale_(tensors, 0.999)

    for found, expected in zip(tensors, exact, strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, expected.to(dtype))


def test_torchs_own_call_rounds_the_number_first() -> None:
    """When this test fails, torch is exact too, and `scale_` can be removed."""
    tensors = [torch.randn(1000).bfloat16()]
    before = tensors[0].clone()

    torch._foreach_mul_(tensors, 0.999)

    assert torch.equal(tensors[0], before)

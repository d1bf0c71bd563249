"""Test the compiled kernel of symmetric products: on an emulated device with tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from interpreter import outside_interpreter
from torch import Tensor

pytest.importorskip("triton")

from triton.backends.nvidia.compiler import CUDABackend

from benchmarks.triton_aot_compile import compiling_for
from optgen.runtime import newton_schulz, symmetric_products
from optgen.runtime.newton_schulz import Iterations
from optgen.runtime.symmetric_products import symmetric_product
from optgen.verification.patch_attribute import patch_attribute
from ptx import mutants
from ptx.emulate import CACHE, Device
from ptx.mutants import MutantsOfKernels

pytestmark = outside_interpreter

TARGET = "sm_80"  # sm_90 multiplies whole tiles in shared memory, which the interpreter does not
QUINTIC = (3.4445, -4.775, 2.0315)


@contextmanager
def emulated(device: Device | None = None, **options: int) -> Iterator[Device]:
    """Let symmetric products of CPU tensors run on an emulated device, with other options."""
    device = device or Device()
    with (
        compiling_for(TARGET, f"{CACHE}-{TARGET}", device.launch),
        patch_attribute(CUDABackend, "make_cubin", lambda *arguments: b""),
        patch_attribute(symmetric_products, "OPTIONS", symmetric_products.OPTIONS | options),
    ):
        yield device


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected(x: Tensor, source: Tensor | None, beta: float, alpha: float) -> Tensor:
    wide = alpha * (x.double() @ x.double().mT)
    return wide if source is None else wide + beta * source.double()


@pytest.mark.one_case_in(3, thorough=1)
@pytest.mark.parametrize("dtype", symmetric_products.DTYPES)
@pytest.mark.parametrize("has_source", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 128, 192), (2, 144, 80), (3, 77, 33), (2, 1, 5), (1, 33, 0), (0, 16, 16)]
)
def test_products_are_those_of_float64(
    shape: tuple[int, ...], has_source: bool, dtype: torch.dtype
) -> None:
    """Small tiles make many of them: whole ones, ragged ones, and those above the diagonal."""
    x = drawn(*shape, dtype=dtype)
    source = symmetric(drawn(shape[0], shape[1], shape[1], dtype=dtype)) if has_source else None
    with emulated(TILE=32, DEPTH=32, num_warps=4) as device:
        found = symmetric_product(x, source, beta=-0.75, alpha=0.5)

    exact = expected(x, source, -0.75, 0.5)
    bound = torch.finfo(dtype).eps * (exact.abs() + 2e-5 * expected(x.abs(), None, 0, 0.5))
    assert ((found.double() - exact).abs() <= bound / 2 * 1.01).all()
    assert torch.equal(found, found.mT)
    assert sum(device.launches.values()) == (found.numel() > 0)


def symmetric(x: Tensor) -> Tensor:
    return (x + x.mT).contiguous()


@pytest.mark.parametrize("is_transposed", [False, True])
def test_tiles_of_the_real_size(is_transposed: bool) -> None:
    x = drawn(1, 256, 144).mT if is_transposed else drawn(1, 144, 256)
    with emulated() as device:
        found = symmetric_product(x)
    assert torch.allclose(found.double(), expected(x, None, 0, 1), rtol=2**-8, atol=1e-4)
    assert device.launches["compute_tile"]


def test_strides_of_a_part_of_a_tensor() -> None:
    x = drawn(2, 50, 3, 40)[:, :, 1]
    with emulated(TILE=32, DEPTH=32, num_warps=4):
        found = symmetric_product(x)
    assert torch.allclose(found.double(), expected(x, None, 0, 1), rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("shape", [(48, 80), (2, 80, 48)])
@pytest.mark.parametrize("dtype", symmetric_products.DTYPES)
def test_iterations_are_as_exact_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, iterations = drawn(*shape, dtype=torch.float32), Iterations(QUINTIC, 5, 1e-7, dtype=dtype)
    (exact,) = newton_schulz.iterate([x.double()], iterations._replace(dtype=torch.float64))
    with newton_schulz.force_way("batched"):
        (plain,) = newton_schulz.iterate([x], iterations)
    with emulated(TILE=32, DEPTH=32, num_warps=4) as device, newton_schulz.force_way("symmetric"):
        (found,) = newton_schulz.iterate([x], iterations)

    assert device.launches["compute_tile"] == 10
    errors = [(each.double() - exact).norm() for each in (found, plain)]
    assert errors[0] <= 1.5 * errors[1]
    assert found.dtype == dtype
    assert found.shape == x.shape


@pytest.mark.one_case_in(3, thorough=1)
@pytest.mark.parametrize(
    ("mutation", "least", "harmless"),
    [(mutants.without_barrier, 8, 1), (mutants.without_wait, 2, 1), (mutants.shifted, 20, 0)],
)
def test_faults_in_the_kernel_are_found(
    mutation: mutants.Mutation, least: int, harmless: int
) -> None:
    """Before the first copies a barrier guards nothing, and after the last ones a wait does not."""
    mutated = MutantsOfKernels(mutation, ("compute_tile",))
    with emulated(Device(3, mutated.run), TILE=32, DEPTH=32, num_warps=4):
        symmetric_product(drawn(1, 64, 128), symmetric(drawn(1, 64, 64)), beta=1)
    executed = [each for each in mutated.outcomes["compute_tile"] if each.is_executed]
    assert len(executed) >= least
    assert len([each for each in executed if not each.is_noticed]) == harmless

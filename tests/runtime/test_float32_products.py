"""Test products in float32 by the compiled function against float64, and what leaves them to torch.

Without AVX-512 or a compiler, these are tests of torch's products.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from optgen.runtime import float32_products
from optgen.runtime.matrix_ops import product
from optgen.runtime.toolchain import processors


@pytest.fixture(autouse=True)
def on_a_processor_of_amd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiled function takes products of any size there."""
    monkeypatch.setattr(processors, "is_of_amd", lambda: True)
    monkeypatch.setattr(float32_products, "_FEW_PRODUCTS", 0)
    with torch.no_grad():
        yield


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layouts(x: Tensor) -> list[Tensor]:
    """Return the matrix row after row, column after column, and as part of a larger one."""
    rows, cols = x.shape
    large = torch.full((rows + 3, cols + 5), torch.nan)
    part = large[1 : rows + 1, 2 : cols + 2]
    return [x, x.mT.contiguous().mT, part.copy_(x)]


def assert_near(found: Tensor, a: Tensor, b: Tensor) -> None:
    """A sum of n products in any order: Higham, Accuracy and Stability, 2002, section 3.1."""
    exact = a.double() @ b.double()
    bound = a.size(-1) * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert found.shape == exact.shape
    assert ((found - exact).abs() <= 1.01 * bound).all()


SIZES = [(128, 128, 128), (141, 257, 143), (560, 300, 144), (1029, 40, 190), (144, 1000, 141)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_are_as_exact_as_torchs(size: tuple[int, int, int]) -> None:
    rows, inner, cols = size
    a, b = numbers(rows, inner), numbers(inner, cols, seed=1)
    for x in layouts(a):
        for y in layouts(b):
            assert_near(product(x, y), a, b)


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 17, 5), (16, 16, 16), (33, 5, 40)], ids=str)
def test_the_function_takes_small_matrices_too(size: tuple[int, int, int]) -> None:
    rows, inner, cols = size
    kernel = float32_products.load()
    if kernel is None:
        pytest.skip("no AVX-512, or no compiler")
    for a in layouts(numbers(rows, inner)):
        for b in layouts(numbers(inner, cols, seed=1)):
            assert_near(kernel.product(a, b, is_symmetric=False), a, b)
        assert_near(kernel.product(a, a.mT, is_symmetric=True), a, a.mT)


@pytest.mark.parametrize("shape", [(130, 140), (600, 70), (141, 600), (1040, 300)], ids=str)
def test_a_matrix_times_its_transpose_is_symmetric(shape: tuple[int, int]) -> None:
    for x in layouts(numbers(*shape)):
        for a in (x, x.mT):
            gram = product(a, a.mT)
            assert_near(gram, a, a.mT)
            if float32_products.load():
                assert torch.equal(gram, gram.mT)


def test_matrices_of_a_batch_have_the_bits_of_each_alone() -> None:
    a, b = numbers(3, 150, 128), numbers(3, 128, 144, seed=1)
    for x, y in ((a, b), (a, a.mT), (a.mT, a)):
        found = product(x, y)
        assert_near(found, x, y)
        if float32_products.load():
            assert torch.equal(found[1], product(x[1], y[1]))


def test_bits_are_the_same_for_any_number_of_threads() -> None:
    if float32_products.load() is None:
        pytest.skip("the number of threads is torch's business")
    a, b = numbers(700, 400), numbers(400, 300, seed=1)
    old_count, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append((product(a, b), product(a, a.mT)))
    finally:
        torch.set_num_threads(old_count)
    for found in results[1:]:
        assert all(map(torch.equal, found, results[0]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_spreads_as_in_torch(value: float) -> None:
    a, b = numbers(200, 150), numbers(150, 160, seed=1)
    a[3, 149], b[7, 2] = value, value
    for x, y in ((a, b), (a, a.mT), (a.mT, a)):
        expected = torch.matmul(x, y)
        torch.testing.assert_close(product(x, y), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.fixture
def without_the_function(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor without AVX-512, as torch tells it."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    float32_products.load.cache_clear()
    yield
    float32_products.load.cache_clear()


def test_without_avx_512_products_are_torchs(without_the_function: None) -> None:
    a, b = numbers(300, 200), numbers(200, 150, seed=1)
    assert float32_products.load() is None
    assert torch.equal(product(a, b), torch.matmul(a, b))
    assert_near(product(a, a.mT), a, a.mT)


def test_other_processors_take_half_of_a_gram_matrix_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "is_of_amd", lambda: False)
    a, b = numbers(300, 200), numbers(200, 150, seed=1)
    assert torch.equal(product(a, b), torch.matmul(a, b))
    is_compiled = float32_products.kernel_for(a, a.mT, is_symmetric=True) is not None
    assert is_compiled == (float32_products.load() is not None)


def test_who_asks_for_less_precision_gets_torchs_products() -> None:
    a, b = numbers(300, 200), numbers(200, 150, seed=1)
    settings = torch.backends.mkldnn.matmul
    old = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        assert torch.equal(product(a, b), torch.matmul(a, b))
        assert float32_products.kernel_for(a, a.mT, is_symmetric=True) is None
    finally:
        settings.fp32_precision = old


def test_other_dtypes_layouts_and_shapes_are_torchs() -> None:
    a, b = numbers(300, 200), numbers(200, 150, seed=1)
    assert torch.equal(product(a.double(), b.double()), torch.matmul(a.double(), b.double()))
    spread = numbers(300, 400)[:, ::2]
    assert torch.equal(product(spread.mT, a), torch.matmul(spread.mT, a))
    negative = torch._neg_view(a)
    assert torch.equal(product(negative, b), torch.matmul(negative, b))
    batch = numbers(2, 300, 200)
    assert torch.equal(product(batch, b), torch.matmul(batch, b))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        product(a, a)


def test_modes_and_derivatives_see_products() -> None:
    a, b = numbers(200, 200), numbers(200, 200, seed=1)
    with FlopCounterMode(display=False) as flops:
        product(a, b)
    assert flops.get_total_flops() == 2 * 200**3
    with torch.enable_grad():
        weight = a.clone().requires_grad_()
        product(weight, b).sum().backward()
    assert weight.grad is not None

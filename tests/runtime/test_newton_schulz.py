"""Test each way to run Newton-Schulz iterations against the iteration in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from optgen.ir.meanings import MEANINGS
from optgen.runtime import newton_schulz, newton_schulz_cost
from optgen.runtime.matrix_ops import orthogonalize

QUINTIC = (3.4445, -4.775, 2.0315)
# Polar Express (Amsel et al., 2025) for five iterations, with its safety factor of 1.01.
POLAR_EXPRESS = tuple(
    number / 1.01**power
    for triple in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845749493, 0.4188073119525673),
    )
    for number, power in zip(triple, (1, 3, 5), strict=True)
)
COEFFICIENTS = {"quintic": QUINTIC, "Polar Express": POLAR_EXPRESS}
NEW_WAYS = newton_schulz.WAYS[1:]


def logarithmic(rank: int, condition: float) -> Tensor:
    return torch.logspace(0, -math.log10(condition), rank, dtype=torch.float64)


def linear(rank: int, condition: float) -> Tensor:
    return torch.linspace(1, 1 / condition, rank, dtype=torch.float64)


def two_values(rank: int, condition: float) -> Tensor:
    return torch.where(torch.arange(rank) < rank // 2, 1.0, 1 / condition).double()


def three_large(rank: int, condition: float) -> Tensor:
    return torch.where(torch.arange(rank) < 3, 1.0, 1 / condition).double()


def of_lower_rank(rank: int, condition: float) -> Tensor:
    return torch.where(torch.arange(rank) < rank // 4, 1.0, 0.0).double()


SPECTRA = (logarithmic, linear, two_values, three_large, of_lower_rank)


def matrix_of(singular_values: Tensor, rows: int, cols: int) -> Tensor:
    """Return a matrix of these singular values, and of random singular vectors."""
    generator = torch.Generator().manual_seed(1)
    rank = len(singular_values)
    left, right = (
        torch.linalg.qr(torch.randn(size, rank, generator=generator, dtype=torch.float64)).Q
        for size in (rows, cols)
    )
    return (left * singular_values) @ right.mT


def run(way: str | None, x: Tensor, coefficients: Sequence[float] = QUINTIC) -> Tensor:
    with newton_schulz.force_way(way):
        (result,) = orthogonalize([x], coefficients, 5, 1e-30)
    return result


def error(result: Tensor, x: Tensor, coefficients: Sequence[float]) -> float:
    """Return the distance to the iteration in float64, in units of its length."""
    least = torch.tensor(1e-30, dtype=torch.float64)
    exact = MEANINGS["orthogonalize"](x.double(), coefficients, 5, least)
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("coefficients", COEFFICIENTS.values(), ids=COEFFICIENTS)
@pytest.mark.parametrize("shape", [(140, 300), (300, 140)], ids=str)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_errors_are_at_most_1_5_times_those_of_the_iteration_in_bfloat16(
    spectrum: object, shape: tuple[int, int], coefficients: Sequence[float], dtype: torch.dtype
) -> None:
    assert callable(spectrum)
    for condition in (10, 1e2, 1e6):
        x = matrix_of(spectrum(min(shape), condition), *shape).to(dtype)
        plain = error(run("batched", x, coefficients), x, coefficients)
        for way in NEW_WAYS:
            assert error(run(way, x, coefficients), x, coefficients) <= 1.5 * plain, condition


@pytest.mark.thorough
@pytest.mark.parametrize("coefficients", COEFFICIENTS.values(), ids=COEFFICIENTS)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_errors_of_larger_matrices_have_the_same_bound(
    spectrum: object, coefficients: Sequence[float]
) -> None:
    assert callable(spectrum)
    for condition in (8, 10, 20, 1e3, 1e6):
        x = matrix_of(spectrum(384, condition), 384, 1152).bfloat16()
        plain = error(run("batched", x, coefficients), x, coefficients)
        for way in NEW_WAYS:
            assert error(run(way, x, coefficients), x, coefficients) <= 1.5 * plain, condition


# Machine epsilons of the error. Products add up in float32, which only iterations in float32 see.
ALLOWED = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 16}


@pytest.mark.parametrize("way", newton_schulz.WAYS)
@pytest.mark.parametrize("shape", [(40, 200), (200, 40), (2, 150, 40)], ids=str)
@pytest.mark.parametrize("divisor", ["norm", "spectral", "none"])
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
def test_options_compute_what_the_word_means(
    dtype: torch.dtype, divisor: str, shape: tuple[int, ...], way: str
) -> None:
    """The error has the size of the dtype's rounding, in every way."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    x = x * (0.05 if divisor == "none" else 2.0**30)  # squares that float16 cannot hold
    before = x.clone()
    name = str(dtype).removeprefix("torch.")
    with newton_schulz.force_way(way):
        (result,) = orthogonalize([x], QUINTIC, 3, 1e-30, divisor, name)
        (by_eps,) = orthogonalize([x], QUINTIC, 3, 1e-30, divisor, torch.finfo(dtype).eps)
    least = torch.tensor(1e-30, dtype=torch.float64)
    exact = MEANINGS["orthogonalize"](x.double(), QUINTIC, 3, least, divisor)
    assert result.dtype == dtype
    allowed = ALLOWED[dtype] * torch.finfo(dtype).eps
    assert (result.double() - exact).norm() <= allowed * exact.norm()
    assert torch.equal(result, by_eps)
    assert torch.equal(x, before)


def test_the_spectral_divisor_lies_between_the_largest_singular_value_and_the_norm() -> None:
    x = matrix_of(logarithmic(20, 100), 20, 30)
    (result,) = orthogonalize([x], (1.0, 0.0, 0.0), 1, 1e-30, "spectral", "parameter")
    assert result.dtype == torch.float64
    scale = float(x.norm() / result.norm())
    assert 1 <= scale <= float(x.norm())
    assert scale == pytest.approx(float((x @ x.mT).norm()) ** 0.5)


def test_without_iterations_and_divisor_the_result_is_a_copy() -> None:
    x = torch.ones(3, 4)
    for way in newton_schulz.WAYS:
        with newton_schulz.force_way(way):
            (result,) = orthogonalize([x], QUINTIC, 0, 0, "none", "float32")
        assert torch.equal(result, x)
        assert result.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("way", NEW_WAYS)
@pytest.mark.parametrize("exponent", [-100, -67, 67, 100])
def test_huge_and_tiny_matrices_have_the_same_bound(way: str, exponent: int) -> None:
    x = torch.randn(40, 90, generator=torch.Generator().manual_seed(0)) * 2.0**exponent
    assert error(run(way, x), x, QUINTIC) <= 1.5 * error(run("batched", x), x, QUINTIC)


@pytest.mark.parametrize("way", NEW_WAYS)
def test_zeros_stay_zeros_and_what_is_not_finite_becomes_nan(way: str) -> None:
    zeros = torch.zeros(20, 30)
    assert not run(way, zeros).any()
    for number in (math.nan, math.inf):
        x = torch.ones(20, 30)
        x[3, 4] = number
        assert run(way, x).isnan().all() == run("batched", x).isnan().all()


@pytest.mark.parametrize("way", NEW_WAYS)
def test_a_matrix_below_eps_shrinks(way: str) -> None:
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0)) * 1e-12
    with newton_schulz.force_way(way):
        (result,) = orthogonalize([x], QUINTIC, 5, 1e-7)
    least = torch.tensor(1e-7, dtype=torch.float64)
    exact = MEANINGS["orthogonalize"](x.double(), QUINTIC, 5, least)
    assert (result.double() - exact).norm() <= 0.02 * exact.norm()
    assert 0 < exact.norm() < 0.2


@pytest.mark.parametrize("way", newton_schulz.WAYS)
def test_batches_and_transposed_memory_give_the_matrices_of_each_alone(way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 30, 20, generator=generator)
    transposed = x.mT.contiguous().mT
    before = transposed.clone()
    for stack in (x, transposed):
        result = run(way, stack)
        assert result.shape == x.shape
        assert result.dtype == torch.bfloat16
        for place in ((0, 0), (1, 2)):
            torch.testing.assert_close(result[place], run(way, x[place]), rtol=0.02, atol=0.02)
    assert torch.equal(transposed, before)


def test_a_gradient_flows_through_the_iteration_of_any_size() -> None:
    """Autograd follows products, but no writes into a result."""
    x = torch.randn(4, 6, requires_grad=True)
    with newton_schulz.force_way("plain"):
        (result,) = orthogonalize([x], QUINTIC, 5, 1e-7)
    result.float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


LARGER_SHAPES = [(31, 33), (33, 31), (12, 64), (45, 100), (3, 20, 41)]
SHAPES_OF_WAYS = [
    *(("compiled", shape) for shape in [(1, 1), (2, 5), (5, 2), (3, 7, 9), *LARGER_SHAPES]),
    *(("compiled square", shape) for shape in LARGER_SHAPES),  # never chosen for smaller ones
]


@pytest.mark.parametrize(("way", "shape"), SHAPES_OF_WAYS, ids=str)
def test_compiled_iterations_take_any_shape(way: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    with newton_schulz.force_way(way):
        (result,) = orthogonalize([x], QUINTIC, 3, 1e-30)
    least = torch.tensor(1e-30, dtype=torch.float64)
    exact = MEANINGS["orthogonalize"](x.double(), QUINTIC, 3, least)
    assert (result.double() - exact).norm() <= 2 * torch.finfo(torch.bfloat16).eps * exact.norm()


@pytest.mark.parametrize("matrices", [1, 7])
def test_compiled_iterations_have_the_same_bits_for_any_number_of_threads(matrices: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(310, 150, generator=generator) for _ in range(matrices)]
    old_count, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with newton_schulz.force_way("compiled"):
                results.append(orthogonalize(tensors, QUINTIC, 5, 1e-7))
    finally:
        torch.set_num_threads(old_count)
    for found in results[1:]:
        assert all(map(torch.equal, found, results[0]))


def test_tensors_of_several_dtypes_are_computed_together() -> None:
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).bfloat16()
    with newton_schulz.force_way("compiled"):
        results = orthogonalize([x, x.float(), x.double()], QUINTIC, 5, 1e-7)
    for result in results:
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result, results[0], rtol=0.02, atol=0.02)


AVX512_BF16 = newton_schulz_cost.Rates(low=200, single=97, solve=50, bytes=6)
COMPILED = AVX512_BF16._replace(compiled=210)
AMX = newton_schulz_cost.Rates(low=1600, single=97, solve=50, bytes=6)


@pytest.mark.parametrize(
    ("rates", "shape", "way"),
    [
        (AVX512_BF16, (64, 64), "batched"),
        (AVX512_BF16, (768, 768), "plain"),
        (AVX512_BF16, (768, 2304), "square"),
        (AVX512_BF16, (128, 4096), "square"),
        (COMPILED, (64, 64), "compiled"),
        (COMPILED, (768, 768), "compiled"),
        (COMPILED, (768, 3072), "compiled square"),
        (AMX, (64, 64), "batched"),
        (AMX, (1024, 4096), "whole"),
    ],
)
def test_the_cheapest_way_is_taken(
    rates: newton_schulz_cost.Rates, shape: tuple[int, int], way: str
) -> None:
    """On AVX512_BF16 the ways are the fastest ones of benchmarks/matrices.py."""
    assert newton_schulz_cost.choose_way(*shape, 5, rates) == way


def test_a_matrix_that_is_read_as_its_negative() -> None:
    x = matrix_of(logarithmic(40, 10.0), 40, 60).float()
    (expected,) = orthogonalize([x], QUINTIC, 5, 1e-7)
    (found,) = orthogonalize([torch._neg_view(-x)], QUINTIC, 5, 1e-7)

    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch imports it
def test_what_follows_operations_sees_products() -> None:
    """A transform of torch.func, forward-mode derivatives, and a mode that sees every operation."""

    def last(x: Tensor) -> Tensor:
        return orthogonalize([x], QUINTIC, 5, 1e-7)[0].float()

    x = matrix_of(logarithmic(40, 10.0), 40, 60).float()
    direction = x.cos()
    with newton_schulz.force_way("batched"):
        expected = last(x)
    _, along = torch.func.jvp(last, (x,), (direction,))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(last(forward_ad.make_dual(x, direction))).tangent
    with FlopCounterMode(display=False) as flops:
        last(x)

    torch.testing.assert_close(torch.func.functionalize(last)(x), expected)
    assert along.norm() > 0
    torch.testing.assert_close(tangent, along)
    assert flops.get_total_flops() > 0


def test_an_unknown_way_is_refused() -> None:
    with (
        pytest.raises(
            ValueError, match="unknown way 'gram'; there are batched, whole, plain, square"
        ),
        newton_schulz.force_way("gram"),
    ):
        pass

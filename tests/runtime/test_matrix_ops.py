"""Test matrix ops against the oracle in float64, and against torch's function."""

from __future__ import annotations

import pytest
import torch
from torch.optim._muon import _zeropower_via_newtonschulz

from optgen.ir.meanings import MEANINGS
from optgen.runtime.matrix_ops import orthogonalize, product

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def random_tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (16, 16), (1, 4)], ids=str)
def test_the_result_for_one_matrix_agrees_with_torchs_function(shape: tuple[int, int]) -> None:
    x = random_tensor(*shape)
    (ours,) = orthogonalize([x], COEFFICIENTS, 5, 1e-7)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours, _zeropower_via_newtonschulz(x, COEFFICIENTS, 5, 1e-7))


def test_the_result_in_bfloat16_is_near_the_oracle() -> None:
    x = random_tensor(3, 12, 7).double()
    exact = MEANINGS["orthogonalize"](x, COEFFICIENTS, 5, torch.tensor(1e-7))
    (result,) = orthogonalize([x], COEFFICIENTS, 5, 1e-7)
    torch.testing.assert_close(result.double(), exact, rtol=0, atol=0.03)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_each_iteration_has_coefficients_of_its_own(steps: int) -> None:
    """The last three coefficients hold for all later iterations."""
    x = random_tensor(6, 4).double()
    triples = [(3.0, -3.0, 1.0), (1.5, -0.5, 0.0)]
    flat = [number for triple in triples for number in triple]
    y = x / x.norm()
    for a, b, c in (triples + triples[1:] * 2)[:steps]:
        gram = y.mT @ y
        y = a * y + y @ (b * gram + c * gram @ gram)
    exact = MEANINGS["orthogonalize"](x, flat, steps, torch.tensor(1e-7))
    torch.testing.assert_close(exact, y)
    (result,) = orthogonalize([x], flat, steps, 1e-7)
    torch.testing.assert_close(result.double(), y, rtol=0, atol=0.03)


def test_results_of_a_list_agree_with_those_of_each_matrix_alone() -> None:
    tensors = [
        random_tensor(4, 6),
        random_tensor(6, 4, seed=1),
        random_tensor(4, 6, seed=2),
        random_tensor(2, 4, 6, seed=3),
    ]
    batched = orthogonalize(tensors, COEFFICIENTS, 5, 1e-7)
    for tensor, result in zip(tensors, batched, strict=True):
        (alone,) = orthogonalize([tensor], COEFFICIENTS, 5, 1e-7)
        assert result.shape == tensor.shape
        torch.testing.assert_close(result, alone, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_operands_are_not_changed(dtype: torch.dtype) -> None:
    tensors = [random_tensor(4, 6).to(dtype), random_tensor(4, 6, seed=1).to(dtype)]
    before = [tensor.clone() for tensor in tensors]
    orthogonalize(tensors, COEFFICIENTS, 5, 1e-7)
    orthogonalize(tensors[:1], COEFFICIENTS, 5, 1e-7)
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old)


def test_an_empty_list_and_a_matrix_of_zeros_are_accepted() -> None:
    assert orthogonalize([], COEFFICIENTS, 5, 1e-7) == []
    for eps in (1e-7, 0.0):
        (result,) = orthogonalize([torch.zeros(3, 2)], COEFFICIENTS, 5, eps)
        assert not result.any()
        zeros = torch.zeros(3, 2, dtype=torch.float64)
        assert not MEANINGS["orthogonalize"](zeros, COEFFICIENTS, 5, torch.tensor(eps)).any()


@pytest.mark.parametrize("exponent", [-27, -67, -100, 67, 100])
def test_the_result_does_not_depend_on_the_size_of_a_matrix_above_eps(exponent: int) -> None:
    x = random_tensor(12, 7)
    (at_one,) = orthogonalize([x], COEFFICIENTS, 5, 1e-35)
    (scaled,) = orthogonalize([x * 2.0**exponent], COEFFICIENTS, 5, 1e-35)
    assert torch.equal(scaled, at_one)


def test_a_matrix_below_eps_has_small_singular_values() -> None:
    x = random_tensor(12, 7) * 1e-12
    (result,) = orthogonalize([x], COEFFICIENTS, 5, 1e-7)
    torch.testing.assert_close(result, _zeropower_via_newtonschulz(x, COEFFICIENTS, 5, 1e-7))
    assert 0 < result.norm() < 0.1


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)], ids=str)
def test_a_matrix_without_elements_keeps_its_shape(shape: tuple[int, int]) -> None:
    (result,) = orthogonalize([torch.zeros(shape)], COEFFICIENTS, 5, 1e-7)
    assert result.shape == shape


@pytest.mark.parametrize("shape", [(300, 256), (257, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_with_the_own_transpose_is_as_exact_as_torchs(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for a in (x, x.mT):
        with torch.no_grad():
            gram = product(a, a.mT)
        exact = a.double() @ a.double().mT
        # A sum of n products in any order: Higham, Accuracy and Stability, 2002, section 3.1.
        magnitudes = a.double().abs() @ a.double().abs().mT
        bound = a.size(1) * torch.finfo(dtype).eps / 2 * magnitudes
        assert ((gram - exact).abs() <= 1.01 * bound).all()

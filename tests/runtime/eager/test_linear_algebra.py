"""Test linear algebra on tensors and lists: it fails as the meanings of its words do, with NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from optgen.ir.meanings import MEANINGS
from optgen.runtime.eager import linear_algebra
from optgen.runtime.eager.tensor_lists import TensorList

ONE_MATRIX = ("cholesky", "eigenvalues", "lower", "upper", "row_ones", "col_ones")
TWO_MATRICES = ("solve_triangular", "solve_transposed")
BAD = {"nothing": 1.0, "zero": 0.0, "negative": -5.0, "infinite": torch.inf, "nan": torch.nan}
PLACES = ((2, 2), (0, 1), (1, 0))
"""On, above and below the diagonal: some words read one triangle only."""


def matrices(size: int, count: int) -> Tensor:
    """Return positive definite matrices."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    return x @ x.mT / size + torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", [3, 70])  # large matrices are decomposed one by one
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", [*ONE_MATRIX, *TWO_MATRICES])
def test_a_word_has_its_meaning_for_a_tensor_a_batch_and_a_list(
    name: str, bad: str, place: tuple[int, int], size: int
) -> None:
    x, y = matrices(size, 3), matrices(size, 3)[..., :2]
    x[(1, *place)] = BAD[bad]
    operands = (x, y) if name in TWO_MATRICES else (x,)
    expected = MEANINGS[name](*operands)
    word = getattr(linear_algebra, name)
    of_list = word(*(TensorList([*each.unbind()]) for each in operands))
    one_by_one = [word(*each) for each in zip(*operands, strict=True)]
    for found in (word(*operands), torch.stack(of_list.tensors), torch.stack(one_by_one)):
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [3, 70])
def test_both_answers_of_a_decomposition_are_those_of_the_words(size: int) -> None:
    x = matrices(size, 3)
    x[1, 1, 0] = torch.inf
    for operand in (x, x[0], x[1]):
        values, vectors = linear_algebra.eigh(operand)
        torch.testing.assert_close(values, linear_algebra.eigenvalues(operand), equal_nan=True)
        torch.testing.assert_close(vectors, linear_algebra.eigenvectors(operand), equal_nan=True)
    of_list = linear_algebra.eigh(TensorList([*x.unbind()]))
    for found, name in zip(of_list, ("eigenvalues", "eigenvectors"), strict=True):
        expected = MEANINGS[name](x)
        torch.testing.assert_close(torch.stack(found.tensors), expected, equal_nan=True)

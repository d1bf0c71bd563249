"""Test the axes of linear algebra against the shapes of tensors whose sizes all differ."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from optgen.ir.kinds import (
    SHAPES,
    SQUARE_MATRICES,
    Axes,
    AxesError,
    axes_of_linear_algebra,
    height,
    union,
    width,
)
from optgen.ir.meanings import MEANINGS
from optgen.ir.ops import LINEAR_ALGEBRA

PAIRS = ("@", "solve_triangular", "solve_transposed")
"""Ops of two matrices."""
SIZES = {"rows": 3, "cols": 5, "rank": 2, "1": 1}


def tensor(axes: Axes) -> Tensor:
    """Return a tensor of two matrices with these axes."""
    return torch.ones(2, SIZES[height(axes)], SIZES[width(axes)], dtype=torch.float64)


def axes_of(x: Tensor) -> Axes:
    return next(axes for axes in SHAPES if tensor(axes).shape == x.shape)


@pytest.mark.parametrize("op", [name for name in LINEAR_ALGEBRA if name not in PAIRS])
@pytest.mark.parametrize("axes", SHAPES, ids=SHAPES.get)
def test_an_op_of_one_matrix_has_the_axes_of_its_result(op: str, axes: Axes) -> None:
    number = torch.tensor(1.0)
    arguments = {
        "inverse_root": (2, 0.5),
        "gaussian": (number,) * 4,
        "singular_vectors": (SIZES["rank"],),
    }.get(op, ())
    is_column = op == "descending" and axes in (Axes.ROW, Axes.COLUMN_T, Axes.RANK)
    is_thin = op == "qr" and axes in (Axes.ROWS_RANK, Axes.COLS_RANK)
    is_square = axes in SQUARE_MATRICES and op != "descending"
    is_any = op in ("transpose", "gaussian", "row_ones", "col_ones")
    of_large = ("singular_vectors", "lower", "upper")
    is_thin = is_thin or (op in of_large and "1" not in SHAPES[axes])
    if is_any or is_square or is_column or is_thin:
        found = axes_of_linear_algebra(op, [axes])
        assert found is axes_of(MEANINGS[op](tensor(axes), *arguments))
    else:
        with pytest.raises(AxesError) as raised:
            axes_of_linear_algebra(op, [axes])
        assert op in str(raised.value)
        assert raised.value.hint


@pytest.mark.parametrize(("a", "b"), list(product(SHAPES, SHAPES)), ids=lambda axes: axes.name)
def test_a_product_has_the_axes_of_its_result(a: Axes, b: Axes) -> None:
    try:
        expected = tensor(a) @ tensor(b)
    except RuntimeError:
        with pytest.raises(AxesError, match="`@` of matrices of shapes"):
            axes_of_linear_algebra("@", [a, b])
    else:
        assert axes_of_linear_algebra("@", [a, b]) is axes_of(expected)


@pytest.mark.parametrize("op", PAIRS[1:])
@pytest.mark.parametrize(("a", "b"), list(product(SHAPES, SHAPES)), ids=lambda axes: axes.name)
def test_a_solution_has_the_axes_of_its_result(op: str, a: Axes, b: Axes) -> None:
    if a in SQUARE_MATRICES and height(a) == height(b):
        expected = MEANINGS[op](tensor(a), tensor(b))
        assert axes_of_linear_algebra(op, [a, b]) is axes_of(expected)
    else:
        with pytest.raises(AxesError, match=rf"`{op}` (with a matrix|of matrices) of shape"):
            axes_of_linear_algebra(op, [a, b])


@pytest.mark.parametrize(("a", "b"), list(product(SHAPES, SHAPES)), ids=lambda axes: axes.name)
def test_an_elementwise_op_has_the_axes_of_its_result(a: Axes, b: Axes) -> None:
    try:
        expected = tensor(a) + tensor(b)
    except RuntimeError:
        with pytest.raises(AxesError, match="do not fit"):
            union(a, b)
    else:
        assert union(a, b) is axes_of(expected)


@pytest.mark.parametrize("op", LINEAR_ALGEBRA)
def test_a_number_is_no_matrix(op: str) -> None:
    for operands in ([Axes.NONE, Axes.TENSOR], [Axes.TENSOR, Axes.NONE]):
        if op in PAIRS or operands[0] is Axes.NONE:
            with pytest.raises(AxesError):
                axes_of_linear_algebra(op, operands)

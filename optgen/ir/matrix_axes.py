"""Define the axes of values, and which axes an op of linear algebra takes and gives.

Each of the last two axes of a value has the size `rows`, `cols`, `rank` or 1. Sizes are symbols
here: two shapes fit if they fit for every parameter. The rank is a hyperparameter; its value for a
parameter is at most the number of rows, and at most the number of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

_ROWS_ABOVE, _COLS_BESIDE, _COLS_ABOVE, _ROWS_BESIDE, _RANK_ABOVE, _RANK_BESIDE = (
    2**bit for bit in range(1, 7)
)


class Axes(IntEnum):
    """Axes along which a value varies, as bits: its shape up to broadcasting.

    One bit is for the batch of matrices. Each other bit gives the size of one axis: `_ROWS_ABOVE`
    says that the last axis but one, whose numbers stand above one another, has the size `rows`.
    `_ROWS_BESIDE` says so of the last axis, whose numbers stand beside one another. A ROW value has
    one number per row (size 1 in the last axis), a COLUMN value one per column (size 1 in the last
    axis but one). Their union is TENSOR, their intersection MATRIX: one number per matrix. The
    names of transposes end in `_T`.
    """

    NONE = 0
    MATRIX = 1
    ROW = 1 | _ROWS_ABOVE
    COLUMN = 1 | _COLS_BESIDE
    TENSOR = 1 | _ROWS_ABOVE | _COLS_BESIDE
    COLUMN_T = 1 | _COLS_ABOVE
    ROW_T = 1 | _ROWS_BESIDE
    ROWS_ROWS = 1 | _ROWS_ABOVE | _ROWS_BESIDE
    COLS_COLS = 1 | _COLS_ABOVE | _COLS_BESIDE
    TENSOR_T = 1 | _COLS_ABOVE | _ROWS_BESIDE
    RANK = 1 | _RANK_ABOVE
    RANK_T = 1 | _RANK_BESIDE
    ROWS_RANK = 1 | _ROWS_ABOVE | _RANK_BESIDE
    COLS_RANK = 1 | _COLS_ABOVE | _RANK_BESIDE
    RANK_ROWS = 1 | _RANK_ABOVE | _ROWS_BESIDE
    RANK_COLS = 1 | _RANK_ABOVE | _COLS_BESIDE
    RANK_RANK = 1 | _RANK_ABOVE | _RANK_BESIDE


SIZES = ("rows", "cols", "rank")
"""Sizes of an axis other than 1, as errors write them."""

_ABOVE = {_ROWS_ABOVE: "rows", _COLS_ABOVE: "cols", _RANK_ABOVE: "rank", 0: "1"}
_BESIDE = {_COLS_BESIDE: "cols", _ROWS_BESIDE: "rows", _RANK_BESIDE: "rank", 0: "1"}
ABOVE, BESIDE = sum(_ABOVE), sum(_BESIDE)
"""Masks of the bits for the last axis but one, and for the last axis."""

_OF_SIZES = {
    (_ABOVE[axes & ABOVE], _BESIDE[axes & BESIDE]): axes for axes in Axes if axes is not Axes.NONE
}
SHAPES: dict[Axes, str] = {axes: f"({m}, {n})" for (m, n), axes in _OF_SIZES.items()}
"""The shape of each matrix of a value, as errors write it."""

SQUARES = (Axes.ROWS_ROWS, Axes.COLS_COLS, Axes.RANK_RANK)
THIN = (Axes.ROWS_RANK, Axes.COLS_RANK)
"""Matrices with at least as many rows as columns, for every parameter, that are not square."""

_BY_ROW = {square: Axes(square & (1 | ABOVE)) for square in SQUARES}
"""The axes of one number per row of each square."""


class AxesError(Exception):
    """Values whose shapes do not fit; `hint` says how to make them fit."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def union(a: Axes, b: Axes) -> Axes:
    """Return the axes of a value computed from two others, element by element.

    Raises:
        AxesError: both vary along the same axis, but over different sizes of it.
    """
    try:
        return Axes(a | b)
    except ValueError:
        pairs = ((above(a), above(b)), (beside(a), beside(b)))
        pair = next(pair for pair in pairs if pair[0] != pair[1] and "1" not in pair)
        one, other = sorted(pair, key=SIZES.index)
        raise AxesError(
            f"the shapes {SHAPES[a]} and {SHAPES[b]} do not fit",
            f"an axis has {one} in one and {other} in the other: transpose(x) swaps the two axes",
        ) from None


def above(axes: Axes) -> str:
    """Return the size of the last axis but one: "rows", "cols", "rank" or "1"."""
    return _ABOVE[axes & ABOVE]


def beside(axes: Axes) -> str:
    """Return the size of the last axis: "rows", "cols", "rank" or "1"."""
    return _BESIDE[axes & BESIDE]


def axes_of_sizes(rows: str, cols: str) -> Axes:
    """Return the axes of a matrix with these sizes; each is "rows", "cols", "rank" or "1"."""
    return _OF_SIZES[rows, cols]


def axes_of_linear_algebra(op: str, operands: Sequence[Axes]) -> Axes:
    """Return the axes of the result of an op of linear algebra.

    Raises:
        AxesError: the op does not take operands of these shapes.
    """
    first = operands[0]
    if first is Axes.NONE:
        raise AxesError(f"`{op}` of a number", "it takes a matrix")
    if op == "@":
        return _product(first, operands[1])
    if op == "gaussian":
        return first
    if op == "singular_vectors":
        return _of_rank(first)
    if op == "transpose":
        return axes_of_sizes(beside(first), above(first))
    if op == "descending":
        return _square_of(first)
    if op == "qr" and first in THIN:
        return first
    if first not in SQUARES:
        hint = "it needs as many rows as columns, for any parameter: g @ transpose(g)"
        if op == "qr":
            hint = "it takes a square matrix, or one of shape (rows, rank) or (cols, rank)"
        raise AxesError(f"`{op}` of a matrix of shape {SHAPES[first]}, which is not square", hint)
    if op == "trace":
        return Axes.MATRIX
    return _BY_ROW[first] if op in ("diag", "eigenvalues") else first


def _product(a: Axes, b: Axes) -> Axes:
    if b is Axes.NONE:
        raise AxesError("`@` by a number", "write * for a product with a number")
    if beside(a) != above(b):
        message = f"`@` of matrices of shapes {SHAPES[a]} and {SHAPES[b]}"
        hint = f"the right one needs {beside(a)} in the first place; transpose(x) swaps the two"
        raise AxesError(message, hint)
    return axes_of_sizes(above(a), beside(b))


def _of_rank(matrix: Axes) -> Axes:
    """Return the axes of `rank` columns that are as long as the columns of a matrix."""
    if "1" in (above(matrix), beside(matrix)):
        message = f"`singular_vectors` of a matrix of shape {SHAPES[matrix]}"
        raise AxesError(message, "it takes a matrix with at least `rank` rows and columns")
    return axes_of_sizes(above(matrix), "rank")


def _square_of(column: Axes) -> Axes:
    """Return the axes of the square matrix that permutes a column."""
    for square, by_row in _BY_ROW.items():
        if column is by_row:
            return square
    hint = "it takes one number per row of a square matrix: diag(x), or eigenvalues(x)"
    raise AxesError(f"`descending` of a matrix of shape {SHAPES[column]}", hint)

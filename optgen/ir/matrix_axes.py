"""Define the axes of values, and which axes an op of linear algebra takes and gives.

A value has the shape of the parameter, of its transpose, or of a square of its rows or columns; or
it has size 1 in one or both of the last two axes. Sizes are symbols here, `rows` and `cols`: two
shapes fit if they fit for every parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

_ROWS_ABOVE, _COLS_BESIDE, _COLS_ABOVE, _ROWS_BESIDE = 2, 4, 8, 16


class Axes(IntEnum):
    """Axes along which a value varies, as bits: its shape up to broadcasting.

    One bit is for the batch of matrices. The others say the size of the last two axes: 2 and 8 are
    for the last axis but one, of the parameter's rows or of its columns; 4 and 16 are for the last
    axis, of its columns or of its rows. A ROW value has one number per row (size 1 in the last
    axis), a COLUMN value one per column (size 1 in the last axis but one). Their union is TENSOR,
    their intersection MATRIX: one number per matrix. The names of transposes end in `_T`.
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


SHAPES: dict[Axes, str] = {
    Axes.MATRIX: "(1, 1)",
    Axes.ROW: "(rows, 1)",
    Axes.COLUMN: "(1, cols)",
    Axes.TENSOR: "(rows, cols)",
    Axes.COLUMN_T: "(cols, 1)",
    Axes.ROW_T: "(1, rows)",
    Axes.ROWS_ROWS: "(rows, rows)",
    Axes.COLS_COLS: "(cols, cols)",
    Axes.TENSOR_T: "(cols, rows)",
}
"""The shape of each matrix of a value, as errors write it."""

SQUARES = (Axes.ROWS_ROWS, Axes.COLS_COLS)
_BY_ROW = {Axes.ROWS_ROWS: Axes.ROW, Axes.COLS_COLS: Axes.COLUMN_T}
_ABOVE = {_ROWS_ABOVE: "rows", _COLS_ABOVE: "cols", 0: "1"}
_BESIDE = {_COLS_BESIDE: "cols", _ROWS_BESIDE: "rows", 0: "1"}


class AxesError(Exception):
    """Values whose shapes do not fit; `hint` says how to make them fit."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def union(a: Axes, b: Axes) -> Axes:
    """Return the axes of a value computed from two others, element by element.

    Raises:
        AxesError: both vary along the same axis, but one over the rows and one over the columns.
    """
    try:
        return Axes(a | b)
    except ValueError:
        raise AxesError(
            f"the shapes {SHAPES[a]} and {SHAPES[b]} do not fit",
            "an axis has rows in one and cols in the other: transpose(x) swaps the two axes",
        ) from None


def above(axes: Axes) -> str:
    """Return the size of the last axis but one: "rows", "cols" or "1"."""
    return _ABOVE[axes & (_ROWS_ABOVE | _COLS_ABOVE)]


def beside(axes: Axes) -> str:
    """Return the size of the last axis: "rows", "cols" or "1"."""
    return _BESIDE[axes & (_COLS_BESIDE | _ROWS_BESIDE)]


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
    if op == "transpose":
        return _made_of(beside(first), above(first))
    if op == "descending":
        return _square_of(first)
    if first not in SQUARES:
        hint = "its rows and its columns must be as many, for any parameter: g @ transpose(g)"
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
    return _made_of(above(a), beside(b))


def _square_of(column: Axes) -> Axes:
    """Return the axes of the square matrix that permutes a column."""
    for square, of in _BY_ROW.items():
        if column is of:
            return square
    hint = "it takes one number per row of a square matrix: diag(x), or eigenvalues(x)"
    raise AxesError(f"`descending` of a matrix of shape {SHAPES[column]}", hint)


def _made_of(rows: str, cols: str) -> Axes:
    return next(axes for axes in SHAPES if (above(axes), beside(axes)) == (rows, cols))

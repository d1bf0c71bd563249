"""Infer the kind of every value: the stage at which it is known (its binding time), and its axes.

The kind of a result is the latest stage and the union of the axes of its operands. Exceptions are
ops of one fixed kind, such as properties; reductions; tests for 0 and None; and linear algebra.

Each of the last two axes of a value has the size `rows`, `cols`, `rank` or 1. Sizes are symbols
here: two shapes fit if they fit for every parameter. The rank is a hyperparameter; its value for a
parameter is at most the number of rows, and at most the number of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from optgen.contract.states import FACTS, RANK, Shape
from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Const, Expr, Ref, children, names_assigned
from optgen.ir.ops import LINEAR_ALGEBRA, PROPERTIES, RANDOM_OPS, REDUCTIONS, WIDE_OPS

_HEIGHT_ROWS, _WIDTH_COLS, _HEIGHT_COLS, _WIDTH_ROWS, _HEIGHT_RANK, _WIDTH_RANK = (
    2**bit for bit in range(1, 7)
)


class Axes(IntEnum):
    """Axes along which a value varies, as bits: its shape up to broadcasting.

    One bit is for the batch of matrices. Each other bit gives the height of a matrix, which is the
    size of the last axis but one, or its width, which is the size of the last axis: `_HEIGHT_ROWS`
    says that the height is `rows`. Without such a bit the size is 1. A ROW value has one number per
    row (width 1), a COLUMN value one per column (height 1). Their union is TENSOR, their
    intersection MATRIX: one number per matrix. The names of transposes end in `_T`.
    """

    NONE = 0
    MATRIX = 1
    ROW = 1 | _HEIGHT_ROWS
    COLUMN = 1 | _WIDTH_COLS
    TENSOR = 1 | _HEIGHT_ROWS | _WIDTH_COLS
    COLUMN_T = 1 | _HEIGHT_COLS
    ROW_T = 1 | _WIDTH_ROWS
    ROWS_ROWS = 1 | _HEIGHT_ROWS | _WIDTH_ROWS
    COLS_COLS = 1 | _HEIGHT_COLS | _WIDTH_COLS
    TENSOR_T = 1 | _HEIGHT_COLS | _WIDTH_ROWS
    RANK = 1 | _HEIGHT_RANK
    RANK_T = 1 | _WIDTH_RANK
    ROWS_RANK = 1 | _HEIGHT_ROWS | _WIDTH_RANK
    COLS_RANK = 1 | _HEIGHT_COLS | _WIDTH_RANK
    RANK_ROWS = 1 | _HEIGHT_RANK | _WIDTH_ROWS
    RANK_COLS = 1 | _HEIGHT_RANK | _WIDTH_COLS
    RANK_RANK = 1 | _HEIGHT_RANK | _WIDTH_RANK


SIZES = ("rows", "cols", "rank")
"""Sizes of an axis, except 1, as errors write them."""

_HEIGHTS = {_HEIGHT_ROWS: "rows", _HEIGHT_COLS: "cols", _HEIGHT_RANK: "rank", 0: "1"}
_WIDTHS = {_WIDTH_COLS: "cols", _WIDTH_ROWS: "rows", _WIDTH_RANK: "rank", 0: "1"}
HEIGHT, WIDTH = sum(_HEIGHTS), sum(_WIDTHS)
"""Masks of the bits that give the height, and of those that give the width."""

_AXES_OF_SIZES = {
    (_HEIGHTS[axes & HEIGHT], _WIDTHS[axes & WIDTH]): axes for axes in Axes if axes is not Axes.NONE
}
SHAPES: dict[Axes, str] = {axes: f"({m}, {n})" for (m, n), axes in _AXES_OF_SIZES.items()}
"""The shape of each matrix of a value with these axes, as errors write it."""

SQUARE_MATRICES = (Axes.ROWS_ROWS, Axes.COLS_COLS, Axes.RANK_RANK)
THIN_MATRICES = (Axes.ROWS_RANK, Axes.COLS_RANK)
"""Matrices with at least as many rows as columns, for every parameter, that are not square."""

_ROW_VALUES = {square: Axes(square & (1 | HEIGHT)) for square in SQUARE_MATRICES}
"""The axes of one number per row, for each square matrix."""


class AxesError(Exception):
    """Error for values whose shapes do not fit; `hint` says how to make them fit."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@cache
def union(a: Axes, b: Axes) -> Axes:
    """Return the axes of a value computed from two others, element by element.

    Raises:
        AxesError: an axis has two different sizes, and neither of them is 1.
    """
    try:
        return Axes(a | b)
    except ValueError:  # no member of Axes has two sizes in one axis
        pairs = ((height(a), height(b)), (width(a), width(b)))
        pair = next(pair for pair in pairs if pair[0] != pair[1] and "1" not in pair)
        first, second = sorted(pair, key=SIZES.index)
        raise AxesError(
            f"the shapes {SHAPES[a]} and {SHAPES[b]} do not fit",
            f"an axis has the sizes {first} and {second}: transpose(x) swaps the two axes",
        ) from None


def height(axes: Axes) -> str:
    """Return the size of the last axis but one: "rows", "cols", "rank" or "1"."""
    return _HEIGHTS[axes & HEIGHT]


def width(axes: Axes) -> str:
    """Return the size of the last axis: "rows", "cols", "rank" or "1"."""
    return _WIDTHS[axes & WIDTH]


def axes_of_sizes(rows: str, cols: str) -> Axes:
    """Return the axes of a matrix with these sizes; each is "rows", "cols", "rank" or "1"."""
    return _AXES_OF_SIZES[rows, cols]


def effective_rank(param: str) -> Expr:
    """Return the rank of a parameter's matrices: `rank`, but at most their rows and columns."""
    rows, cols = (Call(size, (Ref(param),)) for size in ("rows", "cols"))
    return Call("minimum", (Ref(RANK), Call("minimum", (rows, cols))))


def axes_of_linear_algebra(op: str, operands: Sequence[Axes]) -> Axes:
    """Return the axes of the result of an op of linear algebra.

    Raises:
        AxesError: the op does not take operands of these shapes.
    """
    first = operands[0]
    if first is Axes.NONE:
        raise AxesError(f"`{op}` of a number", "it takes a matrix")
    if op == "@":
        return _axes_of_product(first, operands[1])
    if op in ("solve_triangular", "solve_transposed"):
        return _axes_of_solution(op, first, operands[1])
    if op in ("row_ones", "col_ones"):
        return Axes(first & (Axes.MATRIX | (HEIGHT if op == "row_ones" else WIDTH)))
    if op in ("lower", "upper"):
        return _axes_of_triangle(op, first)
    if op == "gaussian":
        return first
    if op == "singular_vectors":
        return _axes_of_singular_vectors(first)
    if op == "transpose":
        return axes_of_sizes(width(first), height(first))
    if op == "descending":
        return _axes_of_permutation(first)
    if op == "qr" and first in THIN_MATRICES:
        return first
    if first not in SQUARE_MATRICES:
        hint = "it needs as many rows as columns, for any parameter: g @ transpose(g)"
        if op == "qr":
            hint = "it takes a square matrix, or one of shape (rows, rank) or (cols, rank)"
        raise AxesError(f"`{op}` of a matrix of shape {SHAPES[first]}, which is not square", hint)
    if op == "trace":
        return Axes.MATRIX
    return _ROW_VALUES[first] if op in ("diag", "eigenvalues") else first


def _axes_of_product(a: Axes, b: Axes) -> Axes:
    """Return the axes of `a @ b`."""
    if b is Axes.NONE:
        raise AxesError("`@` by a number", "write * for a product with a number")
    if width(a) != height(b):
        message = f"`@` of matrices of shapes {SHAPES[a]} and {SHAPES[b]}"
        hint = f"the right matrix needs the shape ({width(a)}, …); transpose(x) swaps the two axes"
        raise AxesError(message, hint)
    return axes_of_sizes(height(a), width(b))


def _axes_of_solution(op: str, triangle: Axes, x: Axes) -> Axes:
    """Return the axes of the solution y of `triangle @ y = x`."""
    if x is Axes.NONE:
        raise AxesError(f"`{op}` of a matrix and a number", "it takes two matrices")
    if triangle not in SQUARE_MATRICES:
        message = f"`{op}` with a matrix of shape {SHAPES[triangle]}, which is not square"
        raise AxesError(message, "the left matrix is a lower triangle: cholesky(y), lower(y)")
    if height(triangle) != height(x):
        message = f"`{op}` of matrices of shapes {SHAPES[triangle]} and {SHAPES[x]}"
        hint = f"the right matrix needs the shape ({height(triangle)}, …)"
        raise AxesError(message, f"{hint}; transpose(x) swaps the two axes")
    return x


def _axes_of_triangle(op: str, matrix: Axes) -> Axes:
    """Return the axes of a triangle of a matrix."""
    if "1" in (height(matrix), width(matrix)):
        message = f"`{op}` of a matrix of shape {SHAPES[matrix]}"
        raise AxesError(message, "it takes a matrix with several rows and columns")
    return matrix


def _axes_of_singular_vectors(matrix: Axes) -> Axes:
    """Return the axes of `rank` columns that are as long as the columns of a matrix."""
    if "1" in (height(matrix), width(matrix)):
        message = f"`singular_vectors` of a matrix of shape {SHAPES[matrix]}"
        raise AxesError(message, "it takes a matrix with at least `rank` rows and columns")
    return axes_of_sizes(height(matrix), "rank")


def _axes_of_permutation(row_values: Axes) -> Axes:
    """Return the axes of the square matrix that permutes these values, one for each of its rows."""
    for square, values in _ROW_VALUES.items():
        if row_values is values:
            return square
    hint = "it takes one number per row of a square matrix: diag(x), or eigenvalues(x)"
    raise AxesError(f"`descending` of a matrix of shape {SHAPES[row_values]}", hint)


class Stage(IntEnum):
    """Binding time: when a value is known, from early to late."""

    STATIC = 0  # flags, choices, whether a hyperparameter is 0 or None: known before the step
    GROUP = 1  # a number of the param group
    PARAM = 2  # a number of one parameter: computed from its step count and scalar states
    DEVICE = 3  # a tensor, or computed from one by a reduction: it stays on the device


@dataclass(frozen=True, slots=True)
class Kind:
    """Stage and axes of a value."""

    stage: Stage
    axes: Axes = Axes.NONE

    @property
    def is_tensor(self) -> bool:
        """Tell whether the value may have more than one number per parameter."""
        return self.axes is not Axes.NONE

    @property
    def is_scalar(self) -> bool:
        """Tell whether the value is one number per parameter, known without reading a tensor."""
        return self.axes is Axes.NONE and self.stage < Stage.DEVICE

    @property
    def is_small(self) -> bool:
        """Tell whether the value is a number, a row or a column that only the device knows."""
        return self.axes is not Axes.TENSOR and self.stage is Stage.DEVICE

    def join(self, other: Kind) -> Kind:
        """Return the kind of a value computed, element by element, from a value of each kind.

        Raises:
            AxesError: the shapes do not fit.
        """
        if self is other or self == other:
            return self
        return Kind(max(self.stage, other.stage), union(self.axes, other.axes))


STATIC = Kind(Stage.STATIC)
GROUP = Kind(Stage.GROUP)
PARAM = Kind(Stage.PARAM)
DEVICE_NUMBER = Kind(Stage.DEVICE)
TENSOR = Kind(Stage.DEVICE, Axes.TENSOR)

KindLookup = Callable[[Ref], Kind]
"""Function from a name to its kind."""

_STATE_KINDS = {
    "like": TENSOR,
    "row": Kind(Stage.DEVICE, Axes.ROW),
    "col": Kind(Stage.DEVICE, Axes.COLUMN),
    "scalar": PARAM,
}
_KINDS_OF_OPS = {
    **dict.fromkeys(WIDE_OPS, DEVICE_NUMBER),
    **dict.fromkeys(RANDOM_OPS, TENSOR),
    **dict.fromkeys(PROPERTIES, PARAM),
    "fresh": PARAM,
    **dict.fromkeys((*FACTS, "within"), STATIC),
}
"""The kinds of the ops whose kind does not depend on their operands."""
_KEPT_BY_PREFIX = {"row": Axes.MATRIX | HEIGHT, "col": Axes.MATRIX | WIDTH}
_KEPT_AXES = {name: _KEPT_BY_PREFIX.get(name.partition("_")[0], 0) for name in REDUCTIONS}
"""For each reduction, the mask of the axes that it keeps."""


def names_of_rule(algorithm: Algorithm) -> set[str]:
    """Return the names that a rule declares or assigns."""
    return names_assigned(algorithm.rule) | set(declared_kinds(algorithm))


def declared_kinds(algorithm: Algorithm) -> dict[str, Kind]:
    """Return the kinds of the names in a rule's signature."""
    kinds = {algorithm.param: TENSOR, algorithm.grad: TENSOR}
    if algorithm.step:
        kinds[algorithm.step] = PARAM
    for state in algorithm.states:
        kinds[state.symbol] = DEVICE_NUMBER if state.on_device else _kind_of_state(state.shape)
    for hyper in algorithm.hypers:
        kinds[hyper.name] = STATIC if hyper.type in ("flag", "choice") else GROUP
    return kinds


def _kind_of_state(shape: Shape) -> Kind:
    """Return the kind of a state that has this shape."""
    if isinstance(shape, str):
        return _STATE_KINDS[shape]
    return Kind(Stage.DEVICE, axes_of_sizes(*shape))


def kind_of(expr: Expr, kinds: KindLookup) -> Kind:
    """Return the kind of an expression, given the kinds of the names it reads.

    Raises:
        AxesError: shapes do not fit.
    """
    match expr:
        case Const():
            return STATIC
        case Ref():
            return kinds(expr)
        case Call(op, _) if op in _KINDS_OF_OPS:
            return _KINDS_OF_OPS[op]
        case Call(op, (arg,)) if op in _KEPT_AXES:
            return Kind(Stage.DEVICE, Axes(kind_of(arg, kinds).axes & _KEPT_AXES[op]))
        case Call(op, args) if op in LINEAR_ALGEBRA:
            operands = [kind_of(arg, kinds).axes for arg in args]
            return Kind(Stage.DEVICE, axes_of_linear_algebra(op, operands))
        case Call("truth" | "is_none", (Ref() | Call("item") as operand,)) if (
            kind_of(operand, kinds).stage <= Stage.GROUP
        ):
            return STATIC
        case _:
            result = STATIC
            for child in children(expr):
                result = result.join(kind_of(child, kinds))
            return result

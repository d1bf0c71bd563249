"""Shapes in a recorded run: what a tensor's shape is in the words of the language.

A run has a matrix of 4 rows and 3 columns, or a vector of 5 elements. So a size says what it is. A
number per row has the shape (rows, 1) in the language, a number per column (1, columns). torch may
leave out the 1: a vector of 4 elements is a number per row, one of 3 elements a number per column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from optgen.importer.numbers import Size
from optgen.importer.recording import NotImportedError, author_line
from optgen.importer.values import Value, apply, constant, is_constant

Shape = tuple[int, ...]


class Sizes(tuple[int, ...]):
    """A shape whose sizes record."""

    def numel(self) -> int:
        """Return the number of elements."""
        product = 1
        for each in self:
            product = product * each
        return product


def size_word(size: int, shape: Shape) -> str | None:
    """Return the word of a size, for a parameter of a shape: rows, cols or numel."""
    if size == shape[0] * (shape[1] if len(shape) == 2 else 1):
        return "numel"
    if len(shape) != 2:
        return None
    return {shape[0]: "rows", shape[1]: "cols"}.get(size)


def recorded_size(size: int, shape: Shape) -> int:
    """Return a size that records, if it is one of the parameter's."""
    word = size_word(size, shape)
    if word is None:
        return size
    made = Size(size)
    made.value = Value(word, (Value("atom", name="p"),))
    return made


def _is_transposed(shape: Shape, param: Shape) -> bool:
    """Tell if a tensor of one axis, or with a 1, lies across the axis that its size is of."""
    if len(param) != 2:
        return False
    return shape in ((param[1], 1), (1, param[0]))


def reshaped(value: Value, before: Shape, after: Shape, param: Shape, what: str) -> Value:
    """Return the value of a tensor that gets another shape.

    Raises:
        NotImportedError: the language has no such shape.
    """
    if _is_transposed(before, param) != _is_transposed(after, param):
        value = transposed(value)
    left, right = (tuple(n for n in each if n != 1) for each in (before, after))
    numel = size_of(param)
    is_flat = {left, right} <= {(numel,), tuple(n for n in param if n != 1)}
    if left != right and not is_flat and size_of(before) != 1:
        raise NotImportedError(f"`{what}` to another shape", author_line())
    return value


def kind_of(shape: Shape, param: Shape) -> str:
    """Return the kind of a value in the language: number, tensor, row, col, turned or another."""
    if size_of(shape) == 1:
        return "number"
    if len(param) != 2:
        return "tensor"
    rows, cols = param
    kinds = {(rows, 1): "row", (rows,): "row", (1, cols): "col", (cols,): "col"}
    kinds |= {(cols, rows): "turned", (rows, rows): "rows", (cols, cols): "cols"}
    return kinds.get(shape, "tensor")


def transposed(value: Value) -> Value:
    """Return a value with rows and columns swapped."""
    is_turned = value.op == "transpose" and value.name is None
    return value.args[0] if is_turned else Value("transpose", (value,))


def size_of(shape: Shape) -> int:
    """Return the number of elements of a shape."""
    product = 1
    for each in shape:
        product *= each
    return product


def aligned(values: Sequence[Any], tensors: Sequence[Any], param: Shape) -> list[Any]:
    """Return the operands of an elementwise operation; torch lays one axis along the last one."""
    sizes = [tuple(x.shape) for x in tensors if isinstance(x, Tensor)]
    if len(param) != 2 or not any(len(each) == 2 for each in sizes):
        return list(values)
    return [
        transposed(v) if isinstance(x, Tensor) and tuple(x.shape) == (param[0],) else v
        for v, x in zip(values, tensors, strict=True)
    ]


def check_matrices(tensors: Sequence[Any], param: Shape, what: str) -> None:
    """Raise an error if a matrix word reads a tensor that is no matrix of the language."""
    for x in tensors:
        if not isinstance(x, Tensor):
            continue
        if x.ndim != 2 or not {*x.shape} <= {*param, 1} or len(param) != 2:
            raise NotImportedError(
                f"`{what}` of the shape {tuple(x.shape)} for a parameter of {param}", author_line()
            )


def reduced(
    word: str,
    value: Value,
    x: Tensor,
    axes: set[int],
    param: Shape,
    *,
    is_kept: bool = False,
    is_of_axis: bool = False,
) -> Value:
    """Return a reduction of a tensor over some axes.

    `is_kept`: reduced axes keep the size 1. `is_of_axis`: the author names the axes. Then numbers
    per row or column make one number for each matrix, else one for all matrices.

    Raises:
        NotImportedError: the language has no such reduction.
    """
    shape = tuple(x.shape)
    wide = {axis for axis, size in enumerate(shape) if size != 1}
    if not wide & axes:
        return apply("abs", value) if word in ("norm", "max_abs") and shape else value
    is_matrix = len(shape) == 2 and wide == {0, 1}
    if is_matrix and axes == {1}:
        made = Value(f"row_{word}", (value,))
        return transposed(made) if not is_kept and shape[0] == param[-1] else made
    if is_matrix and axes == {0}:
        made = Value(f"col_{word}", (value,))
        return transposed(made) if not is_kept and shape[1] == param[0] else made
    if not wide <= axes:
        raise NotImportedError(f"a {word} over some axes of {x.ndim}", author_line())
    side = _side(shape, param)
    if side and is_of_axis and word in ("sum", "mean", "norm", "max_abs"):
        return Value(f"{side}_{word}", (value,))
    return Value(word, (value,))


def _side(shape: Shape, param: Shape) -> str:
    """Return along which axis a number per row or per column is reduced."""
    if len(param) != 2:
        return ""
    rows, cols = param
    return {(rows, 1): "col", (1, cols): "row", (rows,): "col", (cols,): "row"}.get(shape, "")


def variance(value: Value, x: Tensor, axes: set[int], correction: float, param: Shape) -> Value:
    """Return a variance over some axes."""
    mean = reduced("mean", value, x, axes, param, is_kept=True)
    squares = apply("pow", apply("sub", value, mean), constant(2))
    if correction == 0:
        return reduced("mean", squares, x, axes, param)
    count = size_of(tuple(x.shape[a] for a in axes))
    size = recorded_size(count, param)
    number = size.value if isinstance(size, Size) else constant(count)
    total = reduced("sum", squares, x, axes, param)
    return apply("div", total, apply("sub", number, constant(correction)))


def is_nonnegative(value: Value) -> bool:
    """Tell if a value is 0 or more wherever states are. A state's sign is the proof's business."""
    if value not in _nonnegative:
        _nonnegative[value] = _is_nonnegative(value)
    return _nonnegative[value]


_nonnegative: WeakKeyDictionary[Value, bool] = WeakKeyDictionary()


def _is_nonnegative(value: Value) -> bool:
    op, args = value.op, value.args
    if op == "constant":
        return isinstance(value.constant, int | float) and value.constant >= 0
    if op == "atom":
        return value.name not in ("p", "g")
    if op in ("abs", "sqrt", "exp") or op.endswith(("norm", "max_abs", "rms")):
        return True
    if op == "pow":
        return args[1].constant == 2 or is_nonnegative(args[0])
    if op == "sub" and is_constant(args[0], 1) and not value.reads_tensors:
        return True  # a decay is at most 1, else the proof finds it
    if op == "maximum":
        return any(map(is_nonnegative, args))
    if op in ("where", "lerp"):
        return all(map(is_nonnegative, args[1:] if op == "where" else args[:2]))
    is_kept = op in ("add", "mul", "div", "minimum", "copy", "transpose")
    return (is_kept or op.endswith(("sum", "mean"))) and all(map(is_nonnegative, args))

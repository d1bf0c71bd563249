"""Compute with lists of tensors as with one tensor, through torch's `_foreach_` functions.

The functional form of a rule is written for one parameter. Called with lists in place of tensors,
it updates all parameters at once. It reads no value of a tensor, so a graph can capture it: this is
the foreach lowering with `capturable`. A quantity with one number per parameter becomes a vector
with one element per parameter, computed on the device in double precision.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime import matrix_ops
from optgen.runtime.torch_private import foreach_clone

BATCHED_ELEMENTS = 2**10  # larger matrices on the CPU are not stacked for one call

_UNARY = {"abs", "exp", "log", "neg", "sign", "sqrt", "reciprocal"}
_UNARY |= {"tanh", "sin", "cos", "floor", "ceil", "round"}
_BINARY = {"add", "sub", "mul", "div", "maximum", "minimum", "pow"}
_COMMUTATIVE = {"add", "mul", "maximum", "minimum"}
_WITH_0_DIM = {"add", "mul", "div"}  # torch has these for a list and one 0-dim tensor


class TensorList:
    """List of tensors, one per parameter; torch functions of a list apply to each tensor."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> TensorList:
        if func is torch.matmul:
            return batched(matrix_ops.product, *args)
        return cls(_foreach(func.__name__, args) or _each(func, args, kwargs or {}))

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype, which is equal for all tensors."""
        return self.tensors[0].dtype

    def clone(self) -> TensorList:
        """Return copies of the tensors."""
        return TensorList(foreach_clone(self.tensors))

    def copy_(self, values: TensorList) -> None:
        """Write the values into the tensors."""
        torch._foreach_copy_(self.tensors, values.tensors)

    def dim(self) -> int:
        """Return the number of axes, which is equal for all tensors."""
        return self.tensors[0].dim()

    def vector(self) -> Tensor:
        """Return the values of 0-dim tensors as one vector in double precision."""
        return torch.stack(self.tensors).double()

    def fill_(self, values: Any) -> None:
        """Write one number into each 0-dim tensor."""
        if isinstance(values, int | float):
            for tensor in self.tensors:
                tensor.fill_(values)
        else:
            torch._foreach_copy_(self.tensors, list(_column(values, len(self.tensors))))

    def add_(self, number: float) -> None:
        """Add a number to each tensor in place."""
        torch._foreach_add_(self.tensors, number)


def each_of(function: Callable[..., Any], *values: Any) -> TensorList:
    """Apply a function for each parameter; a value that is no list is used for all of them."""
    return TensorList(_each(function, values, {}))


def batched(function: Callable[..., Tensor], *lists: TensorList) -> TensorList:
    """Apply a function to each tensor of these lists, whose tensors have one shape.

    On a device one call takes all tensors. On the CPU this is faster only for small matrices.
    """
    (result,) = batched_results(lambda *row: (function(*row),), *lists)
    return result


def batched_results(
    function: Callable[..., tuple[Tensor, ...]], *lists: TensorList
) -> tuple[TensorList, ...]:
    """Apply a function with several results, as `batched` does; return a list for each result."""
    columns = [each.tensors for each in lists]
    are_large = columns[0][0].is_cpu and any(x.numel() > BATCHED_ELEMENTS for x, *_ in columns)
    if are_large or len(columns[0]) == 1:
        rows = (function(*row) for row in zip(*columns, strict=True))
        return tuple(TensorList([*results]) for results in zip(*rows, strict=True))
    return tuple(TensorList([*each.unbind()]) for each in function(*map(torch.stack, columns)))


def _foreach(name: str, args: tuple[Any, ...]) -> Sequence[Tensor] | None:
    """Compute the result with one call for the whole list; None if torch has no such function."""
    if name in _UNARY and len(args) == 1:
        return _call(name, args[0].tensors)
    if name == "lerp":
        start, end, weight = args
        return _call(name, start.tensors, end.tensors, weight)
    if name not in _BINARY or len(args) != 2:
        return None
    a, b = args
    if not isinstance(a, TensorList):
        if name in _COMMUTATIVE:
            a, b = b, a
        elif name == "sub":
            return _foreach("add", (TensorList(_call("neg", b.tensors)), a))
        elif name == "div":
            return _foreach("mul", (TensorList(_call("reciprocal", b.tensors)), a))
        else:
            return None
    is_one_number = isinstance(b, int | float) or (
        isinstance(b, Tensor) and not b.dim() and name in _WITH_0_DIM
    )
    return _call(name, a.tensors, b if is_one_number else list(_column(b, len(a.tensors))))


def _call(name: str, *args: Any) -> Sequence[Tensor]:
    results: Sequence[Tensor] = getattr(torch, f"_foreach_{name}")(*args)
    return results


def _each(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> list[Tensor]:
    count = next(len(a.tensors) for a in args if isinstance(a, TensorList))
    rows = zip(*(_column(a, count) for a in args), strict=True)
    return [func(*row, **kwargs) for row in rows]


def _column(value: Any, count: int) -> Sequence[Any]:
    """Return the element of a value that belongs to each parameter."""
    if isinstance(value, TensorList):
        return value.tensors
    if isinstance(value, Tensor) and value.dim():
        return value.unbind()
    return [value] * count


def _operator(function: Callable[..., Any], reflected: bool = False) -> Any:
    """Return an operator method that calls a torch function, thus `__torch_function__`."""
    if reflected:
        return lambda self, other: function(other, self)
    return lambda self, *other: function(self, *other)


_OPERATORS: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "truediv": torch.div,
    "pow": torch.pow,
    "mod": torch.remainder,
    "and": torch.bitwise_and,  # the other operand may be a Python bool
    "or": torch.bitwise_or,
    "matmul": torch.matmul,
}
_NOT_REFLECTED: dict[str, Any] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "invert": torch.logical_not,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
}
for _name, _function in {**_OPERATORS, **_NOT_REFLECTED}.items():
    setattr(TensorList, f"__{_name}__", _operator(_function))
for _name, _function in _OPERATORS.items():
    setattr(TensorList, f"__r{_name}__", _operator(_function, reflected=True))


class Sweep:
    """A generated `function` over lists, wrapped so that it takes `TensorList`s."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *lists: Any, **numbers: Any) -> None:
        self.function(*(each.tensors for each in lists), **numbers)


def sweep_function(package: str, name: str) -> Sweep:
    """Return a generated function over lists, by its package and its name."""
    return Sweep(importlib.import_module(f"{package}.{name}")._update)

"""Reduce tensors for the for-loop and foreach lowerings; a reduced axis stays, with size 1.

Squares are summed without being stored: torch's vector norm reads a tensor once. A sum over a whole
tensor is accumulated in float64, block by block. Row and column values have the dtype of the
computation: float64 for a float64 tensor, float32 for any other.

Reductions over several parameters are requests. The argument `number` is the number of one
parameter: a float, a 0-dim tensor, or a tensor of one element. Or it holds a number for each
parameter of a list: stacked along the first axis of a tensor, or in a `TensorList`. A float may
stand for `count` parameters with equal numbers.
"""

from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from optgen.runtime.eager.tensor_lists import TensorList, each_of
from optgen.runtime.rule import compute_dtype
from optgen.runtime.sharded.reductions import WideReduction

Value = TypeVar("Value", Tensor, TensorList)


def zero_sum(like: Tensor, *count: int) -> Tensor:
    """Return a float64 zero, to which sums of blocks are added; with `count`, that many zeros."""
    return torch.zeros([*count, *[1] * like.dim()], dtype=torch.float64, device=like.device)


def number(like: Tensor, value: float | Tensor, *count: int) -> Tensor:
    """Return a number in the shape and dtype of a reduction; with `count`, that many numbers."""
    return zero_sum(like, *count).add_(value)


def stacked_numbers(like: Tensor, states: list[Tensor]) -> Tensor:
    """Return scalar states in the shape and dtype of a reduction of stacked tensors."""
    stacked = torch.stack(states).to(torch.float64)
    return stacked.view(-1, *[1] * like.dim())


def zero_row_sum(like: Tensor, *count: int) -> Tensor:
    """Return a zero for every row of a tensor; with `count`, of that many tensors of its shape."""
    return _zeros([*count, *like.shape[:-1], 1], like)


def zero_col_sum(like: Tensor, *count: int) -> Tensor:
    """Return a zero for every column of a tensor's matrices; with `count`, of that many tensors."""
    return _zeros([*count, *like.shape[:-2], 1, like.size(-1)], like)


def total(x: Tensor) -> Tensor:
    """Sum all elements."""
    return torch.sum(x, tuple(range(x.dim())), keepdim=True)


def totals(stacked: Tensor) -> Tensor:
    """Sum all elements of each tensor that is stacked along the first axis."""
    axes = tuple(range(1, stacked.dim()))
    return stacked.sum(axes, keepdim=True) if axes else stacked


def row_sum(x: Tensor) -> Tensor:
    """Sum every row: over the last axis."""
    return torch.sum(x, -1, keepdim=True)


def col_sum(x: Tensor) -> Tensor:
    """Sum every column: over the second to last axis."""
    return torch.sum(x, -2, keepdim=True)


def max_abs(x: Value) -> Value:
    """Return the largest magnitude; 0 for an empty tensor."""
    if isinstance(x, TensorList):
        return each_of(max_abs, x)
    return stacked_max_abs(x.unsqueeze(0)).squeeze(0)


def stacked_max_abs(stacked: Tensor) -> Tensor:
    """Return the largest magnitude of each tensor stacked along the first axis; 0 if empty."""
    axes = tuple(range(1, stacked.dim()))
    if not stacked.numel():
        return stacked.new_zeros([len(stacked), *[1] * len(axes)])
    return stacked.abs().amax(axes, keepdim=True) if axes else stacked.abs()


def row_max_abs(x: Value) -> Value:
    """Return the largest magnitude of every row; 0 for a row without elements."""
    return _max_abs(x, -1)


def col_max_abs(x: Value) -> Value:
    """Return the largest magnitude of every column; 0 for a column without elements."""
    return _max_abs(x, -2)


def sum_of_squares(x: Tensor) -> Tensor:
    """Sum the squares of all elements."""
    return _sum_of_squares(x, None)


def row_sum_of_squares(x: Tensor) -> Tensor:
    """Sum the squares of every row."""
    return _sum_of_squares(x, -1)


def col_sum_of_squares(x: Tensor) -> Tensor:
    """Sum the squares of every column."""
    return _sum_of_squares(x, -2)


def write(states: list[Tensor], stacked: Tensor) -> None:
    """Store the slices of a stacked value in the states, rounded to the states' dtypes."""
    torch._foreach_copy_(states, list(stacked.unbind()))


def _sum_of_squares(x: Tensor, axis: int | None) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=axis, keepdim=True, dtype=compute_dtype(x.dtype))
    return norm.square_()


def _max_abs(x: Value, axis: int) -> Value:
    if isinstance(x, TensorList):
        return each_of(_max_abs, x, axis)
    return x.abs().amax(axis, keepdim=True) if x.size(axis) else x.sum(axis, keepdim=True)


def _zeros(shape: list[int], like: Tensor) -> Tensor:
    return torch.zeros(shape, dtype=compute_dtype(like.dtype), device=like.device)


def group_sum(number: Any, count: int = 1) -> WideReduction:
    """Ask for the sum over a group's parameters."""
    return _request(number, count, "group", is_maximum=False)


def group_max(number: Any, count: int = 1) -> WideReduction:
    """Ask for the largest number of a group's parameters."""
    return _request(number, count, "group", is_maximum=True)


def all_sum(number: Any, count: int = 1) -> WideReduction:
    """Ask for the sum over all parameters."""
    return _request(number, count, "all", is_maximum=False)


def all_max(number: Any, count: int = 1) -> WideReduction:
    """Ask for the largest number of all parameters."""
    return _request(number, count, "all", is_maximum=True)


def _request(
    number: Any, count: int, over: Literal["group", "all"], *, is_maximum: bool
) -> WideReduction:
    """Return the request for a reduction, with an answer in the form of `number`."""
    if isinstance(number, TensorList):
        numbers = torch.cat([each.reshape(1).double() for each in number.tensors])
        return WideReduction(numbers, over, is_maximum, lambda result: _each_like(number, result))
    if isinstance(number, Tensor):
        numbers = number.reshape(-1).double()
        return WideReduction(numbers, over, is_maximum, lambda result: _like(number, result))
    numbers = torch.full((count,), number, dtype=torch.float64)
    return WideReduction(numbers, over, is_maximum, lambda result: result)


def _like(number: Tensor, result: Tensor) -> Tensor:
    """Return a result in the shape of a number; a sum of many numbers may need a wider dtype."""
    dtype = torch.promote_types(number.dtype, torch.float32)
    return result.to(number.device, dtype).expand(number.shape).clone()


def _each_like(numbers: TensorList, result: Tensor) -> TensorList:
    return TensorList([_like(each, result) for each in numbers.tensors])

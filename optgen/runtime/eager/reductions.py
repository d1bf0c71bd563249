"""Reductions of the for-loop and foreach lowerings; a result keeps every axis, with size 1.

Squares are summed without being stored: torch's vector norm reads a tensor once. What is one number
per tensor is added up in float64; rows and columns are in the type that is computed in.
"""

import torch
from torch import Tensor


def no_sum(like: Tensor, *count: int) -> Tensor:
    """Zero, to add what the blocks of a tensor sum to; or one for each of `count` like it."""
    return torch.zeros([*count, *[1] * like.dim()], dtype=torch.float64, device=like.device)


def number(like: Tensor, value: float | Tensor, *count: int) -> Tensor:
    """A number as a reduction of a tensor leaves one; or one for each of `count` like it."""
    return no_sum(like, *count).add_(value)


def no_row_sum(like: Tensor, *count: int) -> Tensor:
    """A zero for every row of a tensor, or of `count` like it."""
    return _zeros([*count, *like.shape[:-1], 1], like)


def no_col_sum(like: Tensor, *count: int) -> Tensor:
    """A zero for every column of a tensor's matrices, or of `count` like it."""
    return _zeros([*count, *like.shape[:-2], 1, like.size(-1)], like)


def total(x: Tensor) -> Tensor:
    """The sum of everything."""
    return x.sum(tuple(range(x.dim())), keepdim=True)


def totals(stacked: Tensor) -> Tensor:
    """The sum of everything, for each of those stacked along the first axis."""
    axes = tuple(range(1, stacked.dim()))
    return stacked.sum(axes, keepdim=True) if axes else stacked


def row_sum(x: Tensor) -> Tensor:
    """The sum of every row: over the last axis."""
    return x.sum(-1, keepdim=True)


def col_sum(x: Tensor) -> Tensor:
    """The sum of every column: over the axis before the last."""
    return x.sum(-2, keepdim=True)


def max_abs(x: Tensor) -> Tensor:
    """The largest magnitude; 0 of nothing."""
    return max_abses(x.unsqueeze(0)).squeeze(0)


def max_abses(stacked: Tensor) -> Tensor:
    """The largest magnitude, for each of those stacked along the first axis; 0 of nothing."""
    axes = tuple(range(1, stacked.dim()))
    if not stacked.numel():
        return stacked.new_zeros([len(stacked), *[1] * len(axes)])
    return stacked.abs().amax(axes, keepdim=True) if axes else stacked.abs()


def sum_of_squares(x: Tensor) -> Tensor:
    """The sum of all squares."""
    return _sum_of_squares(x, None)


def row_sum_of_squares(x: Tensor) -> Tensor:
    """The sum of squares of every row."""
    return _sum_of_squares(x, -1)


def col_sum_of_squares(x: Tensor) -> Tensor:
    """The sum of squares of every column."""
    return _sum_of_squares(x, -2)


def write(states: list[Tensor], stacked: Tensor) -> None:
    """Store one part of a stacked value in each of the states, rounded as they are stored."""
    torch._foreach_copy_(states, list(stacked.unbind()))


def _sum_of_squares(x: Tensor, axis: int | None) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=axis, keepdim=True, dtype=_computed_in(x))
    return norm.square_()


def _zeros(shape: list[int], like: Tensor) -> Tensor:
    return torch.zeros(shape, dtype=_computed_in(like), device=like.device)


def _computed_in(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32

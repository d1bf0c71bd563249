"""Copy tensors for rules that are computed statement by statement, and not in place.

Such a rule works on whole matrices. It computes in float64 for a float64 parameter, in float32 for
any other, and writes the parameter and its states at its end. So an update in for-loop or foreach
that fails has written none of its tensors. A fused update may have written some of
them before it fails.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from optgen.runtime.eager import elements_at_once
from optgen.runtime.eager.tensor_lists import TensorList
from optgen.runtime.torch_private import foreach_clone

_MAX_LIVE_LISTS = 16  # how many lists of temporaries may exist at once


def copy_in_compute_dtype(value: Tensor | list[Tensor], like: Tensor | list[Tensor]) -> Tensor:
    """Return a copy in the dtype of the computation for a parameter like this one.

    The copy of a list is a `TensorList`, which generated code computes with as with a tensor.
    """
    dtype = _compute_dtype(like)
    if isinstance(value, Tensor):
        return value.to(dtype, copy=True)
    have_dtype = all(tensor.dtype == dtype for tensor in value)
    copies = foreach_clone(value) if have_dtype else [tensor.to(dtype) for tensor in value]
    return cast(Tensor, TensorList(copies))


def in_compute_dtype(value: Tensor | list[Tensor], like: Tensor | list[Tensor]) -> Tensor:
    """Return a tensor or list in the dtype of the computation; the caller must not change it."""
    dtype = _compute_dtype(like)
    if isinstance(value, Tensor):
        return value.to(dtype)
    return cast(Tensor, TensorList([tensor.to(dtype) for tensor in value]))


def number_in_float64(value: Tensor | list[Tensor]) -> Tensor:
    """Return copies of 0-dim states in float64, in which a rule computes with its numbers."""
    if isinstance(value, Tensor):
        return value.to(torch.float64, copy=True)
    return cast(Tensor, TensorList([each.to(torch.float64, copy=True) for each in value]))


def write_back(tensors: list[Tensor], values: Tensor) -> None:
    """Write the values of a `TensorList` into the tensors of a bucket, in their dtype.

    Nothing is copied if the values are these tensors themselves.
    """
    results = cast(TensorList, values).tensors
    if any(tensor is not result for tensor, result in zip(tensors, results, strict=True)):
        torch._foreach_copy_(tensors, results)


def empty_like(values: Tensor) -> Tensor:
    """Return a `TensorList` of new tensors, which a sweep is to fill."""
    tensors = cast(TensorList, values).tensors
    return cast(Tensor, TensorList(list(map(torch.empty_like, tensors))))


def write_number(state: Tensor | list[Tensor], value: float | Tensor | TensorList) -> None:
    """Write a number, or a tensor of one element, into a 0-dim state, or into each of a list."""
    if isinstance(state, list):
        values = value.tensors if isinstance(value, TensorList) else [value] * len(state)
        for each, each_value in zip(state, values, strict=True):
            _write_one(each, each_value)
    else:
        _write_one(state, value)


def _write_one(state: Tensor, value: Any) -> None:
    if isinstance(value, Tensor):
        state.copy_(value.reshape(()))
    else:
        state.fill_(value)


def _compute_dtype(like: Tensor | list[Tensor]) -> torch.dtype:
    param = like if isinstance(like, Tensor) else like[0]
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def same_shape_sublists(
    params: list[Tensor], *lists: list[Tensor]
) -> Iterator[tuple[list[Tensor], ...]]:
    """Yield sublists of a bucket, whose tensors have one shape; an absent state has an empty list.

    A sublist has few elements in each list, or one tensor.
    """
    columns = (params, *lists)
    length = sublist_length(params[0], max(column[0].numel() for column in columns if column))
    for start in range(0, len(params), length):
        yield tuple(column[start : start + length] for column in columns)


def sublist_length(like: Tensor, elements: int) -> int:
    """Return the length of a sublist, if the largest tensor of a parameter has `elements`."""
    max_elements = elements_at_once.block_elements(like, max(4, like.itemsize), _MAX_LIVE_LISTS)
    return max(1, max_elements // max(1, elements))

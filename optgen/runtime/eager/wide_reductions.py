"""Ask for reductions over several parameters, in the forms that generated code computes with.

The argument `number` is the number of one parameter: a float, a 0-dim tensor, or a tensor of one
element. Or it holds a number for each parameter of a list: stacked along the first axis of a
tensor, or in a `TensorList`. A float may stand for `count` parameters with equal numbers.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from optgen.runtime.eager.tensor_lists import TensorList
from optgen.runtime.sharded.reductions import WideReduction


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

"""Combine conditions, and choose values by them: floats, tensors or TensorLists."""

from typing import cast, overload

import torch
from torch import Tensor

from optgen.runtime.eager.scalars import NUMBER_TYPES, S, Scalar
from optgen.runtime.eager.tensor_lists import TensorList, each_of
from optgen.runtime.rule import truth


def holds(value: object) -> bool:
    """Tell whether a hyperparameter is neither None nor 0; a tensor is true, and is not read."""
    return truth(value)


@overload
def both(a: bool, b: bool) -> bool: ...
@overload
def both(a: Tensor, b: bool | Tensor) -> Tensor: ...
@overload
def both(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor: ...
def both(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor:
    """Tell whether two conditions hold; element by element if one is a tensor."""
    return a & b


@overload
def either(a: bool, b: bool) -> bool: ...
@overload
def either(a: Tensor, b: bool | Tensor) -> Tensor: ...
@overload
def either(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor: ...
def either(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor:
    """Tell whether at least one of two conditions holds; element by element if one is a tensor."""
    return a | b


@overload
def opposite(condition: bool) -> bool: ...
@overload
def opposite(condition: Tensor) -> Tensor: ...
def opposite(condition: bool | Tensor) -> bool | Tensor:
    """Negate a condition; element by element if it is a tensor."""
    return not condition if isinstance(condition, bool) else ~condition


@overload
def where(condition: bool, a: S, b: S) -> S: ...
@overload
def where(condition: Tensor, a: Scalar, b: Scalar) -> Tensor: ...
def where(condition: bool | Tensor, a: Scalar, b: Scalar) -> Scalar:
    """Choose one of two values; element by element if the condition is a tensor."""
    if isinstance(condition, bool):
        return _broadcast_chosen(a, b) if condition else _broadcast_chosen(b, a)
    if isinstance(a, NUMBER_TYPES) and isinstance(b, NUMBER_TYPES):  # torch would return float32
        a = torch.full_like(condition, a, dtype=torch.float64)
    return torch.where(condition, a, b)


def _broadcast_chosen(chosen: Scalar, other: Scalar) -> Scalar:
    """Return the chosen value as torch's `where` would; a float if both are floats."""
    if isinstance(chosen, TensorList) or isinstance(other, TensorList):
        return cast(Scalar, each_of(_broadcast_chosen, chosen, other))
    if not isinstance(other, Tensor):
        return chosen.clone() if isinstance(chosen, Tensor) else chosen
    if not isinstance(chosen, Tensor):
        return other.new_full((), chosen).expand(other.shape)
    shape = torch.broadcast_shapes(chosen.shape, other.shape)
    return chosen.to(torch.result_type(chosen, other), copy=True).expand(shape)


def where_number(condition: Tensor | TensorList, a: Scalar, b: Scalar) -> Tensor:
    """Choose one of two numbers by a condition that is a tensor of one element.

    Return a float64 tensor of one element. It is 0-dim, unless one of the numbers is a reduction:
    then it has the reduction's shape.
    """
    if isinstance(condition, TensorList):
        return cast(Tensor, each_of(where_number, condition, a, b))
    like = torch.zeros((), dtype=torch.float64, device=condition.device)
    return torch.where(condition.reshape(()), like + a, like + b)


def in_dtype_of(like: Tensor | TensorList, number: Scalar) -> Tensor:
    """Return a number in the dtype of a tensor, so that torch's `where` keeps that dtype."""
    tensor = like.tensors[0] if isinstance(like, TensorList) else like
    if isinstance(number, TensorList):
        return cast(Tensor, each_of(lambda one: in_dtype_of(tensor, one), number))
    if isinstance(number, Tensor):
        return number.to(tensor.dtype)
    return tensor.new_full((), number)

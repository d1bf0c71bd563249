"""Round to the dtype that a parameter is stored in; multiply without rounding a factor to it."""

import math
from itertools import repeat
from typing import TypeVar

import torch
from torch import Tensor

from optgen.contract.constants import FORMATS
from optgen.runtime.eager.tensor_lists import TensorList

T = TypeVar("T", Tensor, TensorList)
_DTYPES = {f.eps: getattr(torch, name) for name, f in FORMATS.items()}
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by itemsize


def rounded(x: T, eps: float) -> T:
    """Return x rounded to nearest, ties to even, to the dtype with this machine epsilon.

    The result is a new tensor. Its derivative by x is 1.
    """
    if isinstance(x, TensorList):
        return TensorList([rounded(tensor, eps) for tensor in x.tensors])
    narrow = _narrow(x, eps)
    return x.clone() if narrow is None else narrow.to(x.dtype)


def rounded_down(x: T, eps: float) -> T:
    """Return the largest number of the dtype with this machine epsilon that is not above x.

    The result is a new tensor. Its derivative by x is 1.
    """
    if isinstance(x, TensorList):
        return TensorList([rounded_down(tensor, eps) for tensor in x.tensors])
    narrow = _narrow(x, eps)
    if narrow is None:
        return x.clone()
    with torch.no_grad():
        nearest = narrow.detach()
        below = torch.where(nearest > x, _previous(nearest), nearest).to(x.dtype)
    return below + (x - x.detach()).nan_to_num(0.0) if x.requires_grad else below


def rounded_up(x: T, eps: float) -> T:
    """Return the smallest number of the dtype with this machine epsilon that is not below x."""
    return torch.neg(rounded_down(torch.neg(x), eps))  # type: ignore[arg-type,return-value]


def rounded_at_random(x: T, chance: T | Tensor | float, eps: float) -> T:
    """Return x rounded, by chance, to a neighbour in the dtype with this machine epsilon.

    For the neighbours near <= |x| <= far, |x| becomes far where
    `chance * (far - near) < |x| - near`, and near elsewhere. A finite number beyond the largest
    becomes the largest. The derivative of the result by x is 1.
    """
    if isinstance(x, TensorList):
        chances = chance.tensors if isinstance(chance, TensorList) else repeat(chance)
        pairs = zip(x.tensors, chances, strict=False)
        return TensorList([rounded_at_random(tensor, each, eps) for tensor, each in pairs])
    with torch.no_grad():
        magnitude = x.abs()
        near, far = rounded_down(magnitude, eps), rounded_up(magnitude, eps)
        is_far = chance * (far - near) < magnitude - near
        result = torch.where(is_far & (far != math.inf), far, near).copysign(x)
    return result + (x - x.detach()).nan_to_num(0.0) if x.requires_grad else result


def _narrow(x: Tensor, eps: float) -> Tensor | None:
    """Return x in the dtype with this machine epsilon; None if that is no narrower than x's."""
    dtype = _DTYPES[eps]
    return x.to(dtype) if dtype.itemsize < x.dtype.itemsize else None


def _previous(x: Tensor) -> Tensor:
    """Return the next smaller numbers in the dtype of x; for -inf, 0.0 and NaN, any number."""
    bits = x.view(_INTEGERS[x.itemsize])
    # The next smaller number has smaller bits, or greater bits if it is negative.
    return torch.where(bits < 0, bits + 1, bits - 1).view(x.dtype)


def scale_(tensors: list[Tensor], factor: float) -> None:
    """Multiply tensors by a number in place.

    On the CPU `_foreach_mul_` rounds a number to the tensors' dtype before it multiplies: a decay
    of 0.999 becomes 1 in bfloat16. A 0-dim tensor keeps its precision.
    """
    if tensors[0].is_cpu and tensors[0].dtype.itemsize == 2:
        torch._foreach_mul_(tensors, torch.full((), factor, dtype=torch.float32, device="cpu"))
    else:
        torch._foreach_mul_(tensors, factor)

"""Round to the dtype that a parameter is stored in, and compute in a wider dtype.

Some rules must compute more precisely than they store (`optgen/ir/execution.py`). An example is
a rule that rounds its results itself: the results must have more digits than the stored dtype, or
nothing is left to round. The generated code of such a rule takes its tensors through
`in_wider_dtype`: it computes in float32 for 16-bit tensors, and rounds once when it writes back.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import repeat
from typing import Any, TypeVar

import torch
from torch import Tensor

from optgen.contract.numbers import FORMATS
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


def in_wider_dtype(
    rows: Iterable[Sequence[Any]], stored: Sequence[bool], params: Sequence[Tensor]
) -> Iterator[list[Any]]:
    """Yield rows of tensors in one dtype, float32 or wider; then write back those `stored`.

    Args:
        rows: Rows of tensors, or of lists of tensors; None and [] stand for absent states.
        stored: For each of the first entries of a row, whether the caller changes it in place.
            Further entries, such as results of reductions, are passed on as they are.
        params: The parameters of the bucket. The dtype is not narrower than theirs.
    """
    least = torch.promote_types(params[0].dtype, torch.float32)
    for row in rows:
        dtype = _common_dtype(row[: len(stored)], least)
        wide = [_in_dtype(dtype, value) for value in row[: len(stored)]]
        yield [*wide, *row[len(stored) :]]
        for value, computed, is_stored in zip(row, wide, stored, strict=False):
            if is_stored and computed is not value:
                _write(value, computed)


def wider(x: Any, param: Any) -> Any:
    """Return a copy of a tensor in the widest of float32, its own and its parameter's dtype."""
    if isinstance(x, TensorList):
        pairs = zip(x.tensors, param.tensors, strict=True)
        return TensorList([wider(tensor, like) for tensor, like in pairs])
    least = torch.promote_types(param.dtype, torch.float32)
    return x.to(torch.promote_types(x.dtype, least), copy=True)


def _narrow(x: Tensor, eps: float) -> Tensor | None:
    """Return x in the dtype with this machine epsilon; None if that is no narrower than x's."""
    dtype = _DTYPES[eps]
    return x.to(dtype) if dtype.itemsize < x.dtype.itemsize else None


def _previous(x: Tensor) -> Tensor:
    """Return the next smaller numbers in the dtype of x; for -inf, 0.0 and NaN, any number."""
    bits = x.view(_INTEGERS[x.itemsize])
    # The next smaller number has smaller bits, or greater bits if it is negative.
    return torch.where(bits < 0, bits + 1, bits - 1).view(x.dtype)


def _common_dtype(row: Sequence[Any], least: torch.dtype) -> torch.dtype:
    tensors = [value[0] if isinstance(value, list) else value for value in row if _exists(value)]
    return reduce(torch.promote_types, [tensor.dtype for tensor in tensors], least)


def _exists(value: Any) -> bool:
    return value is not None and not (isinstance(value, list) and not value)


def _in_dtype(dtype: torch.dtype, value: Any) -> Any:
    """Return a tensor or a list of tensors in a dtype; itself if it has that dtype already."""
    if not _exists(value):
        return value
    if isinstance(value, list):
        return value if value[0].dtype == dtype else [tensor.to(dtype) for tensor in value]
    return value.to(dtype)


def _write(value: Any, computed: Any) -> None:
    if isinstance(value, list):
        torch._foreach_copy_(value, computed)
    else:
        value.copy_(computed)

"""Real, local views of tensors: what lowerings compute with."""

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from optgen.runtime.tensors.dtensor import locals_of
from optgen.runtime.torch_private import plain

_dtype = attrgetter("dtype")


def reals(tensors: list[Tensor], written: bool = False) -> list[Tensor]:
    """The tensors as a lowering sees them; a new list.

    Of a conjugate view it sees a copy, which is no place to write to: then torch's error is raised.
    """
    held = locals_of(tensors)
    if not any(dtype.is_complex for dtype in set(map(_dtype, held))):
        return held
    return [_real(tensor, written) for tensor in held]


def _real(tensor: Tensor, written: bool) -> Tensor:
    """Complex numbers as pairs of reals."""
    if tensor.is_complex() and not tensor.is_sparse:
        return torch.view_as_real(tensor if written else tensor.resolve_conj())
    return tensor


def all_plain(tensors: Sequence[Tensor]) -> bool:
    """Tell whether all these tensors are memory and no more."""
    return all(map(plain, set(map(type, tensors))))

"""Views of tensors as lowerings compute with them: real and local."""

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from optgen.runtime.tensors.dtensor import to_locals
from optgen.runtime.torch_private import is_plain_class

_dtype = attrgetter("dtype")


def real_local_views(tensors: list[Tensor], written: bool = False) -> list[Tensor]:
    """Return a new list of the tensors as a lowering sees them.

    A lowering sees a complex tensor as a real one with a last axis of size 2. It sees a conjugate
    view as a copy; if the tensors are `written`, torch's error is raised for such a view instead.
    """
    local = to_locals(tensors)
    if not any(dtype.is_complex for dtype in set(map(_dtype, local))):
        return local
    return [_real(tensor, written) for tensor in local]


def _real(tensor: Tensor, written: bool) -> Tensor:
    """View a dense complex tensor as pairs of real numbers; return any other tensor itself."""
    if tensor.is_complex() and not tensor.is_sparse:
        return torch.view_as_real(tensor if written else tensor.resolve_conj())
    return tensor


def all_plain(tensors: Sequence[Tensor]) -> bool:
    """Tell whether no tensor is of a class that overrides operations."""
    return all(map(is_plain_class, set(map(type, tensors))))

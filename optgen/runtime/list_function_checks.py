"""Check the lists of tensors that a function takes: dtypes, classes, and shards of DTensors."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

from torch import Tensor

from optgen.runtime.tensors.dtensor import all_plain

_dtype = attrgetter("dtype")


class UnfitError(TypeError):
    """Raised before any change if the lists have tensors that no rule can take."""


def obstacle(lists: Sequence[Sequence[Tensor]]) -> str:
    """Return a short reason why no rule can take these lists; "" if a rule can."""
    dtypes = set(map(_dtype, chain.from_iterable(lists)))
    unsupported = [
        str(dtype) for dtype in dtypes if not (dtype.is_floating_point or dtype.is_complex)
    ]
    if unsupported:
        return f"takes real or complex numbers, not {min(unsupported)}"
    if all(map(all_plain, lists)):
        return ""
    return next(filter(None, map(_class_obstacle, zip(*lists, strict=False))), "")


def _class_obstacle(tensors: tuple[Tensor, ...]) -> str:
    """Return a short reason why no rule can take tensors of these classes; "" if a rule can.

    The tensors are one from each list, at the same index.
    """
    shardings = [
        (getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None))
        for tensor in tensors
    ]
    if any(sharding != shardings[0] for sharding in shardings):
        return "takes DTensors only with equal meshes and placements in all lists"
    placements = shardings[0][1]
    if any(placement.is_partial() for placement in placements or ()):
        return "takes no DTensors with a Partial placement: redistribute them first"
    classes = [type(t).__name__ for t in tensors if placements is None and not all_plain([t])]
    return f"takes no tensors of class {classes[0]}" if classes else ""

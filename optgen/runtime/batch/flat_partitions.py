"""Refuse flat partitions: vectors that engines put in the place of a model's parameters.

DeepSpeed's ZeRO stages and Megatron's distributed optimizer exchange a group's parameters for one
vector, or for vectors, of the part that this process steps; FSDP 1 makes the model's own parameters
pieces of one. A rule that works element by element need not know. Any other would take the vector
for a parameter, and compute something else without an error.

FSDP marks its tensors. What else is exchanged carries no mark, so a group remembers what it was
given: a flat partition stands where nothing of that is left, and only vectors are found where
matrices were, or fewer vectors. Layers that grow, parameters that join and shards with the shape of
the whole keep their dimensions, or leave others in their place.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import Tensor

from optgen.runtime.protocols import Group, Optimized
from optgen.runtime.torch_private import flattened_by_fsdp, is_flat_parameter


class OriginalParams(NamedTuple):
    """What is remembered of the parameters that a group was given."""

    ids: frozenset[int]
    dims: tuple[int, ...]


def original_params(group: Mapping[str, Any]) -> OriginalParams:
    """What is to be remembered of a group: its parameters are the user's own."""
    params = group["params"]
    return OriginalParams(frozenset(map(id, params)), tuple(map(Tensor.dim, params)))


def originals_after_load(
    before: Sequence[OriginalParams | None], groups: Sequence[dict[str, Any]]
) -> dict[int, OriginalParams]:
    """What groups were given that a load has put in the place of others, or made anew."""
    pairs = zip_longest(groups, before[: len(groups)])
    return {id(group): original or original_params(group) for group, original in pairs}


def check(optimizer: Optimized, group: Group, original: OriginalParams | None) -> None:
    """Raise an error if the group of a rule that is not elementwise holds a flat partition."""
    if optimizer.rule.elementwise:
        return
    params = group["params"]
    marked = any(map(flattened_by_fsdp, params))
    if marked and (any(map(is_flat_parameter, params)) or _pieces(optimizer)):
        what = "FSDP has flattened them"
    elif original and _exchanged(original, params):
        sizes = ", ".join(str(param.numel()) for param in params[:3]) + ", …" * (len(params) > 3)
        what = f"a group's parameters were exchanged for vectors of {sizes} elements"
    else:
        return
    name = type(optimizer).__name__
    raise RuntimeError(
        f"{name} cannot step a flat partition: {what}, and its rule looks at each "
        "parameter as a whole. Parameters keep their shapes with FSDP2 (fully_shard), DDP and "
        "DeepSpeed's stage 0; elementwise rules, such as AdamW, step flat partitions as well"
    )


def _pieces(optimizer: Optimized) -> bool:
    """Tell whether the parameters are pieces of a vector: with FSDP's NO_SHARD they stay whole.

    Any matrix among them says that they are; one group may well have vectors alone.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    marked = [param for param in params if flattened_by_fsdp(param)]
    return bool(marked) and all(param.dim() == 1 for param in marked)


def _exchanged(original: OriginalParams, params: Sequence[Tensor]) -> bool:
    if not params or any(param.dim() != 1 or id(param) in original.ids for param in params):
        return False
    return len(params) < len(original.dims) or any(dim > 1 for dim in original.dims)

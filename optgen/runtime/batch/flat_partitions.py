"""Refuse flat partitions: vectors that engines put in the place of a model's parameters.

DeepSpeed's ZeRO stages and Megatron's distributed optimizer replace a group's parameters by one or
several vectors, which hold the elements that this rank steps. FSDP 1 makes the model's own
parameters views of one vector. An elementwise rule can step such vectors. Any other rule would take
a vector for a parameter, and compute wrong values without an error.

FSDP marks its tensors. The other engines do not, so a group remembers its original parameters. The
group's parameters are taken for a flat partition if all are vectors and none of them is an
original, and if they are fewer than the originals or some original had more than one dimension.
Other changes do not fit this description: layers that grow and DTensors keep their number of
dimensions, and a group that gains parameters still has the original ones.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import Tensor

from optgen.runtime.protocols import Group, OptimizerLike
from optgen.runtime.torch_private import flattened_by_fsdp, is_flat_parameter


class OriginalParams(NamedTuple):
    """The parameters that the user gave to a group: their numbers of dimensions by identity.

    This object holds no references, not even weak ones: `torch.utils.swap_tensors`, and so
    `model.to()` of DTensors, refuses tensors that have weak references. The model keeps its
    parameters alive, so their identities stay valid.
    """

    dims_by_id: Mapping[int, int]

    def has(self, param: Tensor) -> bool:
        """Tell whether a parameter is one of these parameters."""
        return self.dims_by_id.get(id(param)) == param.dim()


def original_params(group: Mapping[str, Any]) -> OriginalParams:
    """Describe the parameters of a group before an engine replaces any of them."""
    return OriginalParams({id(param): param.dim() for param in group["params"]})


def originals_after_load(
    before: Sequence[OriginalParams | None], groups: Sequence[dict[str, Any]]
) -> dict[int, OriginalParams]:
    """Return the original parameters of the groups that a load made, by the identity of the group.

    A new group takes over the original parameters of the old group at its index, if there was one.
    """
    pairs = zip_longest(groups, before[: len(groups)])
    return {id(group): original or original_params(group) for group, original in pairs}


def check(optimizer: OptimizerLike, group: Group, originals: Mapping[int, OriginalParams]) -> None:
    """Raise an error if the group of a rule that is not elementwise holds a flat partition.

    Args:
        optimizer: the optimizer.
        group: the group.
        originals: the original parameters by the identity of their group.
    """
    if optimizer.rule.elementwise:
        return
    params = group["params"]
    has_mark = any(map(flattened_by_fsdp, params))
    if has_mark and (any(map(is_flat_parameter, params)) or _all_marked_are_vectors(optimizer)):
        reason = "FSDP has flattened its parameters"
    elif _holds_flat_partition(id(group), originals, params):
        sizes = ", ".join(str(param.numel()) for param in params[:3]) + ", …" * (len(params) > 3)
        reason = f"a group's parameters were exchanged for vectors of {sizes} elements"
    else:
        return
    name = type(optimizer).__name__
    raise RuntimeError(
        f"{name} cannot step a flat partition: {reason}, and its rule looks at each "
        "parameter as a whole. Parameters keep their shapes with FSDP2 (fully_shard), DDP and "
        "DeepSpeed's stage 0; elementwise rules, such as AdamW, step flat partitions as well"
    )


def _all_marked_are_vectors(optimizer: OptimizerLike) -> bool:
    """Tell whether all parameters that FSDP marks are vectors, thus pieces of a flat parameter.

    With FSDP's NO_SHARD the parameters keep their shapes, so at least one parameter of the model is
    a matrix. All groups are searched for this matrix, because one group may have vectors only.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    marked = [param for param in params if flattened_by_fsdp(param)]
    return bool(marked) and all(param.dim() == 1 for param in marked)


def _holds_flat_partition(
    group_id: int, originals: Mapping[int, OriginalParams], params: Sequence[Tensor]
) -> bool:
    """Tell whether a group's original parameters were replaced by a flat partition.

    A parameter that the user gave to another group shows that there is no flat partition.
    """
    original = originals.get(group_id)
    if original is None or not params or any(param.dim() != 1 for param in params):
        return False
    if any(each.has(param) for each in originals.values() for param in params):
        return False
    return len(params) < len(original.dims_by_id) or any(
        dim > 1 for dim in original.dims_by_id.values()
    )

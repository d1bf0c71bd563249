"""Check the parameters of groups, in the shapes that the rule sees, before a step depends on them.

A model may be cast after its optimizer was made: `model.bfloat16()` leaves the parameters in the
groups, with other memory and another dtype. So what depends on dtypes is decided in each step.

Engines put flat partitions, which are vectors, in the place of a model's parameters. DeepSpeed's
ZeRO stages and Megatron's distributed optimizer replace a group's parameters by one or several
vectors, which hold the elements that this rank steps. FSDP 1 makes the model's own parameters views
of one vector. An elementwise rule can step such vectors. Any other rule would take a vector for a
parameter, and compute wrong values without an error.

FSDP marks its tensors. The other engines do not, so a group remembers its original parameters. The
group's parameters are taken for a flat partition if all are vectors and none of them is an
original, and if they are fewer than the originals or some original had more than one dimension.
Other changes do not fit this description: layers that grow and DTensors keep their number of
dimensions, and a group that gains parameters still has the original ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from torch import Tensor

from optgen.contract.states import VIEW
from optgen.runtime.batch.step_context import OptimizerWithContext, OriginalParams
from optgen.runtime.rule import Group, OptimizerLike, Rule
from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.tensors.group_view import Pieces, View, check_form, each_seen
from optgen.runtime.tensors.sharding import shard_sizes, sharding_of
from optgen.runtime.torch_private import flattened_by_fsdp, is_flat_parameter, local_tensor


def check_added_group(optimizer: OptimizerWithContext, index: int) -> None:
    """Check the parameters of a new group in the shape of its view.

    Raises:
        ValueError: The group's view is malformed, or does not fit a parameter; or the rule
            cannot take a parameter.
    """
    group = optimizer.param_groups[index]
    check_params(optimizer, group, group["params"])
    if group.get(VIEW) is not None:
        _check_group(optimizer, index, group)


def check_views(optimizer: OptimizerWithContext, groups: Sequence[Group] | None = None) -> None:
    """Check the views of an optimizer's groups, or of the `groups` that will replace them.

    For an elementwise rule, which ignores views, a view need not fit the parameters: a training
    engine may have replaced them by a flat partition.

    Raises:
        ValueError: A view is malformed, or does not fit a parameter; or the rule cannot take a
            parameter in the shape of its view.
    """
    for index, group in enumerate(optimizer.param_groups if groups is None else groups):
        if group.get(VIEW) is not None:
            try:
                _check_group(optimizer, index, group, must_fit=not optimizer.rule.elementwise)
            except ValueError:
                check_not_flat(optimizer, group, optimizer._context.original_params)
                raise


def check_viewed(optimizer: OptimizerWithContext, viewed_param: Tensor) -> None:
    """Raise a ValueError if the rule cannot take a parameter in the shape of a view.

    If each matrix steps by itself, a rule for matrices takes a batch of them.
    """
    is_batch = optimizer.rule.by_matrix and viewed_param.ndim > 2
    try:
        optimizer._check_param(viewed_param)
    except ValueError:
        if not is_batch:
            raise
        optimizer._check_param(viewed_param.new_empty(viewed_param.shape[-2:]))


def _check_group(
    optimizer: OptimizerWithContext, index: int, group: Group, must_fit: bool = True
) -> None:
    """Check one group's view; raise a ValueError that names the group."""
    rule, view, params = optimizer.rule, group[VIEW], group["params"]
    try:
        check_form(view)
        if not must_fit:
            return
        for param in params:
            seen = each_seen(view, param)
            if not rule.elementwise:
                _check_sharding_in_view(param, view, seen)
            try:
                for viewed_param in seen:
                    check_viewed(optimizer, viewed_param)
            except ValueError as error:
                shape = tuple(param.shape)
                raise ValueError(f"view={view} of a parameter of shape {shape}: {error}") from None
    except ValueError as error:
        raise ValueError(f"group {index}: {error}") from None


def _check_sharding_in_view(param: Tensor, view: View | Pieces, seen: list[Tensor]) -> None:
    """Raise a ValueError if the shards of a parameter are no shards of its view."""
    if not isinstance(view, list):
        shard_sizes(param, seen[0].shape)
    elif is_dtensor(type(param)):
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} is a DTensor, and view={view} cuts it into "
            "pieces: shards are no shards of the pieces; give the model a parameter for each piece"
        )


def note_narrow_params(rule: Rule, groups: Iterable[Group]) -> None:
    """Set the flags of groups that say whether a parameter is of 16 bits now."""
    for group in groups if rule.narrow_flags else ():
        group.update(rule.narrow_values(group["params"]))


def check_parameters(optimizer: OptimizerLike) -> None:
    """Raise torch's errors for parameters that a rule without dense gradients cannot take."""
    if optimizer.rule.gradient != "sparse_only":
        return
    param_by_indices = {
        (group_index, index): param
        for group_index, group in enumerate(optimizer.param_groups)
        for index, param in enumerate(group["params"])
    }
    sparse_indices = [
        list(indices) for indices, param in param_by_indices.items() if param.is_sparse
    ]
    name = rule_owner(optimizer)
    if sparse_indices:
        raise ValueError(
            f"Sparse params at indices {sparse_indices}: {name} requires dense parameter tensors"
        )
    complex_indices = [
        list(indices) for indices, param in param_by_indices.items() if param.is_complex()
    ]
    if complex_indices:
        raise ValueError(
            f"Complex params at indices {complex_indices}: {name} does not support complex "
            "parameters"
        )


def check_for_whole_params(optimizer: OptimizerLike, members: list[Tensor]) -> None:
    """Raise an error for tensors that only an elementwise rule can take."""
    if optimizer.rule.elementwise:
        return
    name = rule_owner(optimizer)
    for member in members:
        if member.is_complex():
            raise RuntimeError(f"{name} does not support complex parameters")
        sharding = sharding_of(member)
        if sharding is not None and not sharding.matches_shard_of(member):
            raise RuntimeError(
                f"{name} looks at a parameter as a whole, and this rank's shard has the shape "
                f"{tuple(local_tensor(member).shape)} of a parameter {tuple(member.shape)} with "
                f"placements {sharding.placements}: torch shards in other sizes; make the "
                "parameter with distribute_tensor"
            )


def check_params(optimizer: OptimizerWithContext, group: Group, params: Iterable[Tensor]) -> None:
    """Check parameters of a group without a view; `check_views` checks those in a view.

    Raises:
        ValueError: The rule cannot take a parameter. If it takes matrices only, the second line of
            the message says how two optimizers share a model.
    """
    if group.get(VIEW) is None:
        for param in params:
            try:
                optimizer._check_param(param)
            except ValueError as error:
                if hint := _hint_for_matrices(optimizer, param):
                    raise ValueError(f"{error}\n{hint}") from None
                raise


def _hint_for_matrices(optimizer: OptimizerWithContext, refused_param: Tensor) -> str:
    """Return what to do if a rule takes matrices of a parameter's kind, and no vectors; else ""."""

    def takes(*shape: int) -> bool:
        try:
            optimizer._check_param(refused_param.new_empty(shape, device="meta"))
        except ValueError:
            return False
        return True

    if takes(4) or not takes(4, 4):
        return ""
    name = type(optimizer).__name__
    call = f'optgen.optim.create_optimizer(model, {name}, others="adamw")'
    return f"hint: {call} gives {name} the matrices of a model, and AdamW the rest"


def rule_owner(optimizer: OptimizerLike) -> str:
    """Return the name of the class that defines the rule.

    AdamW inherits Adam's rule, and torch's errors then say Adam.
    """
    for cls in type(optimizer).__mro__:
        if "lowerings" in vars(cls):
            return cls.__name__
    return type(optimizer).__name__


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


def check_not_flat(
    optimizer: OptimizerLike, group: Group, originals: Mapping[int, OriginalParams]
) -> None:
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

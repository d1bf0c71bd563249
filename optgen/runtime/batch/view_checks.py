"""Check the views of param groups before anything depends on them."""

from collections.abc import Sequence

from torch import Tensor

from optgen.runtime.batch import flat_partitions
from optgen.runtime.batch.casts import check_params
from optgen.runtime.batch.context import OptimizerWithContext
from optgen.runtime.protocols import Group
from optgen.runtime.tensors.group_view import asked_view, check_form, in_view
from optgen.runtime.tensors.sharding import shard_sizes


def check_added_group(optimizer: OptimizerWithContext, index: int) -> None:
    """Check the parameters of a new group in the shape of its view.

    Raises:
        ValueError: The group's view is malformed, or does not fit a parameter; or the rule
            cannot take a parameter.
    """
    group = optimizer.param_groups[index]
    check_params(optimizer, group, group["params"])
    if asked_view(group) is not None:
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
        if asked_view(group) is not None:
            try:
                _check_group(optimizer, index, group, must_fit=not optimizer.rule.elementwise)
            except ValueError:
                flat_partitions.check(optimizer, group, optimizer._context.original_params)
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
    rule, view, params = optimizer.rule, asked_view(group), group["params"]
    try:
        check_form(view)
        if not must_fit:
            return
        for param, viewed_param in zip(params, in_view(view, params), strict=True):
            if not rule.elementwise:
                shard_sizes(param, viewed_param.shape)
            try:
                check_viewed(optimizer, viewed_param)
            except ValueError as error:
                shape = tuple(param.shape)
                raise ValueError(f"view={view} of a parameter of shape {shape}: {error}") from None
    except ValueError as error:
        raise ValueError(f"group {index}: {error}") from None

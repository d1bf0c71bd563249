"""Checks of parameters and gradients that depend on the rule, with torch's errors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.protocols import OptimizerLike
from optgen.runtime.rule import truth
from optgen.runtime.tensors.group_view import asked_view
from optgen.runtime.tensors.sharding import sharding_of
from optgen.runtime.torch_private import local_tensor


def check(optimizer: OptimizerLike, group: Mapping[str, Any], grad: Tensor) -> None:
    """Raise an error if the rule cannot take this gradient: torch's error, where torch has one."""
    rule = optimizer.rule
    if grad.layout not in (torch.strided, torch.sparse_coo):
        name = _rule_owner(optimizer)
        raise RuntimeError(f"{name} does not support gradients of the layout {grad.layout}")
    if grad.is_sparse:
        if rule.gradient == "dense":
            message = f"{_rule_owner(optimizer)} does not support sparse gradients"
            raise RuntimeError(message + rule.sparse_hint)
        for key in rule.dense_only:
            if truth(group[key]):
                raise RuntimeError(f"{key} option is not compatible with sparse gradients")
        if not rule.elementwise and not grad.dense_dim():
            message = f"{_rule_owner(optimizer)} reduces over rows: "
            raise RuntimeError(message + "a sparse gradient must name whole rows")
    elif rule.gradient == "sparse_only":
        message = f"{_rule_owner(optimizer)} does not support dense gradients"
        raise RuntimeError(message + rule.sparse_hint)


def check_dense_in_view(group: Mapping[str, Any], grads: Sequence[Tensor]) -> None:
    """Raise an error for a sparse gradient in a group with a view.

    A sparse gradient names rows of the parameter, which are not the rows of the view.
    """
    if any(grad.layout is not torch.strided for grad in grads):
        raise RuntimeError(
            f"a group with view={asked_view(group)} takes no sparse gradients: a sparse gradient "
            "names rows of the parameter, not of the view; make the gradients dense, or remove the "
            "view"
        )


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
    name = _rule_owner(optimizer)
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
    name = _rule_owner(optimizer)
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


def _rule_owner(optimizer: OptimizerLike) -> str:
    """Return the name of the class that defines the rule.

    AdamW inherits Adam's rule, and torch's errors then say Adam.
    """
    for cls in type(optimizer).__mro__:
        if "lowerings" in vars(cls):
            return cls.__name__
    return type(optimizer).__name__

"""Checks of parameters and gradients that depend on the rule, with torch's errors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.protocols import Optimized
from optgen.runtime.rule import truth
from optgen.runtime.tensors.sharding import sharding_of
from optgen.runtime.torch_private import local_tensor


def check(optimizer: Optimized, group: Mapping[str, Any], grad: Tensor) -> None:
    """Raise an error, torch's where it has one, if the rule cannot take this gradient."""
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
            message = f"{_rule_owner(optimizer)} looks at rows, not at single elements: "
            raise RuntimeError(message + "a sparse gradient must name whole rows")
    elif rule.gradient == "sparse_only":
        message = f"{_rule_owner(optimizer)} does not support dense gradients"
        raise RuntimeError(message + rule.sparse_hint)


def check_parameters(optimizer: Optimized) -> None:
    """Raise torch's errors for parameters that a rule for sparse gradients only cannot take."""
    if optimizer.rule.gradient != "sparse_only":
        return
    places = {
        (index, place): param
        for index, group in enumerate(optimizer.param_groups)
        for place, param in enumerate(group["params"])
    }
    sparse = [list(at) for at, param in places.items() if param.is_sparse]
    name = _rule_owner(optimizer)
    if sparse:
        raise ValueError(
            f"Sparse params at indices {sparse}: {name} requires dense parameter tensors"
        )
    complexes = [list(at) for at, param in places.items() if param.is_complex()]
    if complexes:
        raise ValueError(
            f"Complex params at indices {complexes}: {name} does not support complex parameters"
        )


def check_whole(optimizer: Optimized, members: list[Tensor]) -> None:
    """Raise an error for tensors that only an elementwise rule can take."""
    if optimizer.rule.elementwise:
        return
    name = _rule_owner(optimizer)
    for member in members:
        if member.is_complex():
            raise RuntimeError(f"{name} does not support complex parameters")
        sharding = sharding_of(member)
        if sharding is not None and not sharding.is_even(member):
            raise RuntimeError(
                f"{name} looks at a parameter as a whole, and this process holds a part of the "
                f"shape {tuple(local_tensor(member).shape)} of a parameter {tuple(member.shape)} "
                f"that lies as {sharding.placements}: not as torch cuts it; use distribute_tensor"
            )


def _rule_owner(optimizer: Optimized) -> str:
    """The class whose rule this is: AdamW inherits Adam's, and torch's errors then say Adam."""
    for kind in type(optimizer).__mro__:
        if "lowerings" in vars(kind):
            return kind.__name__
    return type(optimizer).__name__

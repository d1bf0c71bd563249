"""Create an optimizer's state from its rule, or by a step that changes nothing else."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import optgen.optim
from optgen.runtime import GeneratedOptimizer, Rule
from optgen.runtime.state.create import create_missing


def zero_gradients(params: Mapping[str, Tensor], sparse: set[str]) -> None:
    """Set the gradients of trainable parameters to zeros; the named ones are sparse and empty."""
    for name, param in params.items():
        if param.requires_grad:
            zeros = torch.zeros_like(param)
            param.grad = zeros.to_sparse(min(1, zeros.dim())) if name in sparse else zeros


def create_state(optimizer: Optimizer) -> None:
    """Create the state that a step without a gradient would create.

    The rule creates it, unless it is not known, or computes the first value of a matrix in a step.
    """
    rule = _rule(optimizer)
    if rule is None or _computes_first_matrices(rule):
        create_by_step(optimizer, optimizer.step)
        return
    with torch.no_grad():
        for group in optimizer.param_groups:
            params = [param for param in group["params"] if param.requires_grad]
            create_missing(
                rule,
                optimizer.state,
                group,
                params,
                optimizer.defaults,
                groups=optimizer.param_groups,
            )


def _computes_first_matrices(rule: Rule) -> bool:
    """Tell whether a step computes the first value of a state that is a square or thin matrix."""
    return any(s.key in rule.fresh and isinstance(s.shape, tuple) for s in rule.states)


def _rule(optimizer: Optimizer) -> Rule | None:
    """Return the rule of an optimizer, or None if the rule is not known.

    For torch's class, return the rule of our class of the same name. With sparse gradients return
    None, because torch's SGD then has sparse momentum, and ours has not.
    """
    cls = type(optimizer)
    if not issubclass(cls, GeneratedOptimizer):
        if cls is not getattr(torch.optim, cls.__name__, None) or _has_sparse_grad(optimizer):
            return None
        cls = getattr(optgen.optim, cls.__name__, cls)
    return cls.rule if issubclass(cls, GeneratedOptimizer) else None


def _has_sparse_grad(optimizer: Optimizer) -> bool:
    grads = (param.grad for group in optimizer.param_groups for param in group["params"])
    return any(grad is not None and grad.is_sparse for grad in grads)


def create_by_step(optimizer: Optimizer, step: Callable[[], Any]) -> None:
    """Create state by a step, and restore everything else that the step changes.

    Parameters that already have state take no part. Of the new entries, the step count is set
    to 0; the other entries keep the values that the step gives them.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    params = [param for param in params if param.grad is not None]
    with_state = [param for param in params if optimizer.state.get(param)]
    without_state = [param for param in params if not optimizer.state.get(param)]
    try:
        with _all_else_restored(optimizer, with_state, without_state):
            step()
    except BaseException:
        for param in without_state:
            optimizer.state.pop(param, None)
        raise
    for param in without_state:
        _restart(optimizer.state.get(param, {}))


@contextmanager
def _all_else_restored(
    optimizer: Optimizer, with_state: list[Tensor], without_state: list[Tensor]
) -> Iterator[None]:
    """Hide `with_state` and weight decay from a step; after it, restore all but the new states."""
    grads = [param.grad for param in with_state]
    weights = [param.detach().clone() for param in without_state]
    groups = [_copied(group) for group in optimizer.param_groups]
    for param in with_state:
        param.grad = None
    for group in optimizer.param_groups:
        if isinstance(group.get("weight_decay"), (int, float)):
            group["weight_decay"] = 0.0
    try:
        yield
    finally:
        for param, grad in zip(with_state, grads, strict=True):
            param.grad = grad
        with torch.no_grad():
            for param, weight in zip(without_state, weights, strict=True):
                param.copy_(weight)
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                _put_back(group, values)


def _copied(group: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return pairs by key: the value of a group, and its copy if it is a tensor, else None."""
    return {
        key: (value, value.clone() if isinstance(value, Tensor) else None)
        for key, value in group.items()
    }


def _put_back(group: dict[str, Any], values: dict[str, tuple[Any, Any]]) -> None:
    for key in [key for key in group if key not in values]:
        del group[key]
    for key, (value, copy) in values.items():
        group[key] = value
        if copy is not None:
            value.copy_(copy)


def _restart(values: dict[str, Any]) -> None:
    """Set the step count of a state to 0, whether it is a number or a tensor."""
    count = values.get("step")
    if isinstance(count, Tensor):
        count.zero_()
    elif count is not None:
        values["step"] = 0

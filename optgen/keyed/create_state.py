"""Create state without a step, or by a step that changes nothing else."""

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
    """Create the state that the next step would create: from the rule if known, else by a step."""
    rule = _rule(optimizer)
    if rule is None:
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


def _rule(optimizer: Optimizer) -> Rule | None:
    """Return the rule of our optimizer, or of our class of the same name as torch's, or None.

    It is None for torch's optimizers with sparse gradients: torch's SGD then has sparse momentum.
    """
    kind = type(optimizer)
    if not issubclass(kind, GeneratedOptimizer):
        if kind is not getattr(torch.optim, kind.__name__, None) or _has_sparse_grad(optimizer):
            return None
        kind = getattr(optgen.optim, kind.__name__, kind)
    return kind.rule if issubclass(kind, GeneratedOptimizer) else None


def _has_sparse_grad(optimizer: Optimizer) -> bool:
    grads = (param.grad for group in optimizer.param_groups for param in group["params"])
    return any(grad is not None and grad.is_sparse for grad in grads)


def create_by_step(optimizer: Optimizer, step: Callable[[], Any]) -> None:
    """Create state by a step, and restore everything else that the step changes.

    Parameters that already have state take no part. Of the new entries, the step count is set
    to 0; the values of other entries are not known.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    params = [param for param in params if param.grad is not None]
    old = [param for param in params if optimizer.state.get(param)]
    new = [param for param in params if not optimizer.state.get(param)]
    try:
        with _unchanged(optimizer, old, new):
            step()
    except BaseException:
        for param in new:
            optimizer.state.pop(param, None)
        raise
    for param in new:
        _restart(optimizer.state.get(param, {}))


@contextmanager
def _unchanged(optimizer: Optimizer, old: list[Tensor], new: list[Tensor]) -> Iterator[None]:
    grads = [param.grad for param in old]
    weights = [param.detach().clone() for param in new]
    groups = [_copied(group) for group in optimizer.param_groups]
    for param in old:
        param.grad = None
    for group in optimizer.param_groups:
        if isinstance(group.get("weight_decay"), (int, float)):
            group["weight_decay"] = 0.0
    try:
        yield
    finally:
        for param, grad in zip(old, grads, strict=True):
            param.grad = grad
        with torch.no_grad():
            for param, weight in zip(new, weights, strict=True):
                param.copy_(weight)
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                _put_back(group, values)


def _copied(group: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values of a group, with a copy of each tensor."""
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

"""Create an optimizer's state from its rule, or by a step that changes nothing else."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import optgen.optim
from optgen.runtime import GeneratedOptimizer, Rule
from optgen.runtime.batch.check_params import note_narrow_params
from optgen.runtime.state.create import create_missing


def zero_gradients(params: Mapping[str, Tensor], sparse_names: set[str]) -> None:
    """Set the gradients of trainable parameters to zeros, sparse for those in `sparse_names`."""
    for name, param in params.items():
        if param.requires_grad:
            zeros = torch.zeros_like(param)
            param.grad = zeros.to_sparse(min(1, zeros.dim())) if name in sparse_names else zeros


def create_state(optimizer: Optimizer) -> None:
    """Create the state of all trainable parameters, and change nothing else.

    The optimizer's rule creates the state. If the rule is not known, or if its first step computes
    the first value of a matrix, a step creates the state.
    """
    rule = _rule(optimizer)
    if rule is None or _computes_first_matrices(rule):
        create_by_step(optimizer, optimizer.step)
        return
    note_narrow_params(rule, optimizer.param_groups)
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

    Parameters that already have state do not take part in the step. Then the new step counts are
    set to 0; other new entries keep the values that the step gives them.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    params = [param for param in params if param.grad is not None]
    with_state = [param for param in params if optimizer.state.get(param)]
    without_state = [param for param in params if not optimizer.state.get(param)]
    try:
        with _restore_all_but_new_states(optimizer, with_state, without_state):
            step()
    except BaseException:
        for param in without_state:
            optimizer.state.pop(param, None)
        raise
    for param in without_state:
        _reset_step_count(optimizer.state.get(param, {}))


@contextmanager
def _restore_all_but_new_states(
    optimizer: Optimizer, with_state: list[Tensor], without_state: list[Tensor]
) -> Iterator[None]:
    """Hide `with_state` and weight decay from a step; after it, restore all but the new states."""
    grads = [param.grad for param in with_state]
    weights = [param.detach().clone() for param in without_state]
    snapshots = [_snapshot(group) for group in optimizer.param_groups]
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
            for group, snapshot in zip(optimizer.param_groups, snapshots, strict=True):
                _restore(group, snapshot)


def _snapshot(group: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return pairs by key: the value of a group, and its copy if it is a tensor, else None."""
    return {
        key: (value, value.clone() if isinstance(value, Tensor) else None)
        for key, value in group.items()
    }


def _restore(group: dict[str, Any], snapshot: dict[str, tuple[Any, Any]]) -> None:
    for key in [key for key in group if key not in snapshot]:
        del group[key]
    for key, (value, copy) in snapshot.items():
        group[key] = value
        if copy is not None:
            value.copy_(copy)


def _reset_step_count(state: dict[str, Any]) -> None:
    """Set the step count of a parameter's state to 0, whether it is a number or a tensor."""
    count = state.get("step")
    if isinstance(count, Tensor):
        count.zero_()
    elif count is not None:
        state["step"] = 0

"""Find the gradients of a group, check them, and view them as lowerings see them."""

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from optgen.contract.states import VIEW
from optgen.runtime.batch.check_params import rule_owner
from optgen.runtime.rule import Group, OptimizerLike, truth
from optgen.runtime.tensors.dtensor import all_plain, real_local_views

_layout = attrgetter("layout")


ParamsAndGradients: TypeAlias = tuple[list[Tensor], list[Tensor]]
"""The parameters of a group that have a gradient, and their gradients."""


class Gradients(NamedTuple):
    """The gradients of one group as lowerings see them."""

    tensors: list[Tensor]
    ordinary: bool  # all are dense, and none is of a class that overrides torch's operations


def params_and_gradients(
    group: Group, step_grads: Sequence[Tensor | None] | None = None
) -> ParamsAndGradients:
    """Return the parameters of a group that have a gradient, and the gradients.

    `step_grads` are gradients for all parameters of the group; by default the parameters' own.
    """
    params = group["params"]
    all_grads = [param.grad for param in params] if step_grads is None else step_grads
    grads = [grad for grad in all_grads if grad is not None]
    if len(grads) == len(params):
        return list(params), grads
    return list(compress(params, [grad is not None for grad in all_grads])), grads


def zero_gradients(grads: Sequence[Tensor]) -> None:
    """Write zeros into gradients."""
    plain = [grad for grad in grads if type(grad) is Tensor and _takes_foreach_zero(grad)]
    with torch.no_grad():
        if plain:
            torch._foreach_zero_(plain)
        if len(plain) < len(grads):
            for grad in grads:
                grad.zero_()


def _takes_foreach_zero(grad: Tensor) -> bool:
    """Tell whether `_foreach_zero_` takes a gradient."""
    return not (grad.is_sparse or grad.is_conj() or grad.is_neg())


def checked_gradients(optimizer: OptimizerLike, group: Group, grads: list[Tensor]) -> Gradients:
    """Check gradients, and return them as lowerings see them.

    A sparse gradient becomes dense if it has no sparse dimension, or if the group has a state that
    the rule must update as a whole.
    """
    rule = optimizer.rule
    if group.get(VIEW) is not None:
        check_dense_in_view(group, grads)
    if rule.gradient != "sparse_only" and set(map(_layout, grads)) <= {torch.strided}:
        views = real_local_views(grads)
        return Gradients(views, ordinary=all_plain(views))
    needs_dense = any(not state.rows and state.is_present(group) for state in rule.states)
    checked = []
    for grad in grads:
        if grad.layout is not torch.strided or rule.gradient == "sparse_only":
            check_gradient(optimizer, group, grad)
        becomes_dense = grad.is_sparse and (needs_dense or grad.sparse_dim() == 0)
        checked.append(grad.to_dense() if becomes_dense else grad)
    return Gradients(real_local_views(checked), ordinary=False)


def check_gradient(optimizer: OptimizerLike, group: Mapping[str, Any], grad: Tensor) -> None:
    """Raise an error if the rule cannot take this gradient: torch's error, where torch has one."""
    rule = optimizer.rule
    if grad.layout not in (torch.strided, torch.sparse_coo):
        name = rule_owner(optimizer)
        raise RuntimeError(f"{name} does not support gradients of the layout {grad.layout}")
    if grad.is_sparse:
        if rule.gradient == "dense":
            message = f"{rule_owner(optimizer)} does not support sparse gradients"
            raise RuntimeError(message + rule.sparse_hint)
        for key in rule.dense_only:
            if truth(group[key]):
                raise RuntimeError(f"{key} option is not compatible with sparse gradients")
        if not rule.elementwise and not grad.dense_dim():
            message = f"{rule_owner(optimizer)} reduces over rows: "
            raise RuntimeError(message + "a sparse gradient must name whole rows")
    elif rule.gradient == "sparse_only":
        message = f"{rule_owner(optimizer)} does not support dense gradients"
        raise RuntimeError(message + rule.sparse_hint)


def check_dense_in_view(group: Mapping[str, Any], grads: Sequence[Tensor]) -> None:
    """Raise an error for a sparse gradient in a group with a view.

    A sparse gradient names rows of the parameter, which are not the rows of the view.
    """
    if any(grad.layout is not torch.strided for grad in grads):
        raise RuntimeError(
            f"a group with view={group.get(VIEW)} takes no sparse gradients: a sparse gradient "
            "names rows of the parameter, not of the view; make the gradients dense, or remove the "
            "view"
        )

"""Convert a group's hyperparameters to the arguments of a generated eager function."""

from typing import Any

from torch import Tensor

from optgen.runtime.protocols import Group
from optgen.runtime.rule import Rule, number


def hyper_arguments(rule: Rule, group: Group, functional: bool, lowering: str) -> dict[str, Any]:
    """Return the hyperparameters as the lowering takes them.

    The functional form gets tensors as they are, for autograd and graph capture. Any other form
    gets numbers, with one exception: the for-loop gets a tensor learning rate as a tensor, because
    torch's for-loop computes the step size in the dtype of that tensor.
    """
    arguments: dict[str, Any] = {}
    for key, value in zip(rule.hypers, rule.hyper_values(group), strict=True):
        if isinstance(value, (tuple, list)):
            arguments[key] = tuple(map(_without_axes if functional else number, value))
        elif functional:
            arguments[key] = _without_axes(value)
        elif lowering == "forloop" and key in rule.tensor_hypers and isinstance(value, Tensor):
            arguments[key] = _without_axes(value.detach())
        else:
            arguments[key] = number(value)
    return arguments


def _without_axes(value: Any) -> Any:
    """Return a one-element tensor as a 0-dim tensor, and any other value itself."""
    return value.squeeze() if isinstance(value, Tensor) and value.dim() else value

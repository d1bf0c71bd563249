"""The other side of a comparison: a rule in plain torch, or the optimizer of a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

Values = dict[Any, Any]
"""The values that a rule keeps for the next step.

`Alone` adds the step under "step", the parameter's number under "index", and an extra input such as
`hessian` under "given hessian".
"""
Rule = Callable[[Tensor, Tensor, Values], Tensor]
"""Returns the parameter after a step; takes the parameter, its gradient and its values."""
SharedRule = Callable[[list[Tensor], list[Tensor], Values], list[Tensor]]
"""Returns all parameters after a step; takes the parameters, gradients and common values."""
Inputs = dict[str, Any]
"""Extra inputs of a step by name: a list with a tensor for each parameter, or None."""


class Reference(Protocol):
    """A rule that takes steps on parameters of its own."""

    params: list[Tensor]

    def step(self, gradients: list[Tensor], inputs: Inputs) -> None:
        """Take a step."""


class Packaged:
    """A library's optimizer, with parameters of its own. It steps as ours does."""

    def __init__(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        self.optimizer, self.params = optimizer, params


Begin = Callable[[list[Tensor]], Reference | Packaged]
"""Makes a reference for parameters."""


def alone(rule: Rule) -> Begin:
    """Return a function that makes a reference; its rule takes one parameter at a time."""
    return lambda params: Alone(rule, params)


def together(rule: SharedRule) -> Begin:
    """Return a function that makes a reference; its rule takes all parameters together."""
    return lambda params: Together(rule, params)


class Alone:
    """A rule that takes one parameter at a time."""

    def __init__(self, rule: Rule, params: list[Tensor]) -> None:
        self.rule, self.params = rule, params
        self.values: list[Values] = [{"index": index, "step": 0} for index in range(len(params))]

    def step(self, gradients: list[Tensor], inputs: Inputs) -> None:
        """Take a step of every parameter."""
        for index, own in enumerate(self.values):
            own["step"] += 1
            for name, tensors in inputs.items():
                own[f"given {name}"] = tensors and tensors[index]
            self.params[index] = self.rule(self.params[index], gradients[index], own)


class Together:
    """A rule that takes all parameters together."""

    def __init__(self, rule: SharedRule, params: list[Tensor]) -> None:
        self.rule, self.params = rule, params
        self.values: Values = {}

    def step(self, gradients: list[Tensor], inputs: Inputs) -> None:
        """Take a step of all parameters."""
        self.params = self.rule(self.params, gradients, self.values)

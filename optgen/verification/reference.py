"""The other side of a comparison: a rule in plain torch, or the optimizer of a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

State = dict[Any, Any]
"""The values that a rule keeps for the next step, by name.

`RuleReference` adds three values that are not states: the step under "step", the parameter's number
under "index", and an extra input such as `hessian` under "given hessian".
"""
Rule = Callable[[Tensor, Tensor, State], Tensor]
"""Returns the parameter after a step; takes the parameter, its gradient and its state."""
SharedRule = Callable[[list[Tensor], list[Tensor], State], list[Tensor]]
"""Returns all parameters after a step; takes the parameters, gradients and common state."""
Inputs = dict[str, Any]
"""Extra inputs of a step by name: a list with a tensor for each parameter, or None."""


class Reference(Protocol):
    """A rule that takes steps on parameters of its own."""

    params: list[Tensor]

    def step(self, gradients: list[Tensor], inputs: Inputs) -> None:
        """Take a step."""


class LibraryReference:
    """A library's optimizer, with parameters of its own. It is stepped as our optimizers are."""

    def __init__(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        self.optimizer, self.params = optimizer, params


MakeReference = Callable[[list[Tensor]], Reference | LibraryReference]
"""Makes a reference from the parameters before the first step."""


def by_parameter(rule: Rule) -> MakeReference:
    """Return a function that makes a reference, whose rule takes one parameter at a time."""
    return lambda params: RuleReference(rule, params)


def over_all_parameters(rule: SharedRule) -> MakeReference:
    """Return a function that makes a reference, whose rule takes all parameters together."""
    return lambda params: SharedRuleReference(rule, params)


class RuleReference:
    """Reference with a rule that takes one parameter at a time."""

    def __init__(self, rule: Rule, params: list[Tensor]) -> None:
        self.rule, self.params = rule, params
        self.states: list[State] = [{"index": index, "step": 0} for index in range(len(params))]

    def step(self, gradients: list[Tensor], inputs: Inputs) -> None:
        """Take a step of every parameter."""
        for index, state in enumerate(self.states):
            state["step"] += 1
            for name, tensors in inputs.items():
                state[f"given {name}"] = tensors and tensors[index]
            self.params[index] = self.rule(self.params[index], gradients[index], state)


class SharedRuleReference:
    """Reference with a rule that takes all parameters together."""

    def __init__(self, rule: SharedRule, params: list[Tensor]) -> None:
        self.rule, self.params = rule, params
        self.state: State = {}

    def step(self, gradients: list[Tensor], inputs: Inputs) -> None:
        """Take a step of all parameters."""
        self.params = self.rule(self.params, gradients, self.state)

"""A case: one of our optimizers with options, its problem, and the reference to compare it with.

The problem is least squares, whose gradients depend on the parameters. The reference is a rule in
plain torch, or the optimizer of a library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
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


Shapes = tuple[tuple[int, ...], ...]
LARGE_NOISE = 20.0
"""The size of the noise in every fifth step, so that clipping takes effect; else it is 1."""


@dataclass(frozen=True)
class Problem:
    """Least squares for each parameter, with new data in every step.

    A parameter is a matrix here, with its first axis as rows. A step draws data X and Y, and the
    loss is |X p - Y|² / 2n, for n rows of X. Every number is in float64 on the CPU.
    """

    shapes: Shapes
    same_data: bool = False  # every step has the data of the first step

    def initial_params(self) -> list[Tensor]:
        """Return the parameters before the first step."""
        generator = torch.Generator().manual_seed(100)
        return [_normal(shape, generator) for shape in self.shapes]

    def gradients(self, params: list[Tensor], step: int) -> list[Tensor]:
        """Return the gradients at these parameters. Steps count from 1."""
        gradients = []
        for param, (x, y) in zip(params, self._data(step), strict=True):
            residual = x @ param.reshape(x.size(1), -1) - y
            gradients.append((x.mT @ residual / len(x)).reshape(param.shape))
        return gradients

    def loss(self, params: list[Tensor], step: int) -> Tensor:
        """Return the loss at these parameters."""
        total = torch.zeros((), dtype=torch.float64)
        for param, (x, y) in zip(params, self._data(step), strict=True):
            residual = x @ param.reshape(x.size(1), -1) - y
            total = total + residual.square().sum() / 2 / len(x)
        return total

    def hessian_diagonals(self, params: list[Tensor], step: int) -> list[Tensor]:
        """Return a positive estimate of the Hessian's diagonal that depends on the parameters."""
        diagonals = []
        for param, (x, _) in zip(params, self._data(step), strict=True):
            matrix = param.reshape(x.size(1), -1)
            diagonal = x.square().mean(0)[:, None] * (1 + 0.1 * matrix.square())
            diagonals.append(diagonal.reshape(param.shape))
        return diagonals

    def _data(self, step: int) -> list[tuple[Tensor, Tensor]]:
        return _draw_data(self.shapes, 1 if self.same_data else step)


@cache
def _draw_data(shapes: Shapes, step: int) -> list[tuple[Tensor, Tensor]]:
    """Draw X and Y of each parameter for a step."""
    generator = torch.Generator().manual_seed(step)
    noise = LARGE_NOISE if step % 5 == 0 else 1.0
    data = []
    for shape in shapes:
        rows = shape[0] if shape else 1
        cols = int(torch.Size(shape).numel()) // rows
        equations = rows + 3  # more than unknowns
        x = _normal((equations, rows), generator)
        y = x.sum(1, keepdim=True) + noise * _normal((equations, cols), generator)
        data.append((x, y))
    return data


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


STEPS = 30
"""The default number of steps."""
BOUND = 1e-10
"""The default largest difference of an element."""
ANY_SHAPES: Shapes = ((5,), (4, 3), (), (2, 7), (2, 3, 4))
MATRICES: Shapes = ((5, 3), (3, 5), (4, 4), (5, 3), (1, 2))


@dataclass(frozen=True, eq=False)
class Case:
    """One of our optimizers with options, and the reference to compare it with."""

    name: str  # of the optimizer, in the catalogue
    make_reference: MakeReference
    options: Mapping[str, Any]  # of our class
    label: str = ""  # how it differs from other cases of the same name
    shapes: Shapes = ANY_SHAPES
    steps: int = STEPS
    bound: float = BOUND  # the largest difference that an element may have after any step
    # Returns the extra inputs of a step.
    inputs: Callable[[Problem, list[Tensor], int], Inputs] | None = None
    # Replaces `newton_schulz.iterate`, which computes in bfloat16.
    iterate: Callable[..., list[Tensor]] | None = None
    sparse_gradients: bool = False  # gradients hold only some of the rows
    with_closure: bool = False  # a step is handed a closure
    dtype: torch.dtype = torch.float64  # of our parameters; the reference has float64

    @property
    def problem(self) -> Problem:
        """The problem that both sides solve. With a closure, every step has the same data."""
        return Problem(self.shapes, same_data=self.with_closure)

    def __str__(self) -> str:
        return f"{self.name}, {self.label}" if self.label else self.name

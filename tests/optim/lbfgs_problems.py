"""Functions to minimize, and runs of LBFGS on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Function = Callable[[Tensor], Tensor]


def rosenbrock(size: int) -> Function:
    """A long curved valley."""
    assert size > 1

    def function(x: Tensor) -> Tensor:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    return function


def quadratic(size: int) -> Function:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(size, size, dtype=torch.float64, generator=generator)
    matrix = root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)
    right = torch.randn(size, dtype=torch.float64, generator=generator)

    def function(x: Tensor) -> Tensor:
        return 0.5 * x @ matrix.to(x) @ x - right.to(x) @ x

    return function


def logistic(size: int) -> Function:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(3 * size, size, dtype=torch.float64, generator=generator)
    labels = (torch.rand(3 * size, generator=generator) < 0.5).double()

    def function(x: Tensor) -> Tensor:
        scores = inputs.to(x) @ x
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels.to(x))
        return loss + 0.01 * x @ x

    return function


def start(size: int, dtype: torch.dtype = torch.float64) -> Parameter:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(size, dtype=torch.float64, generator=generator)
    return Parameter((0.5 * values).to(dtype))


@dataclass
class Run:
    """An optimizer with a function of one parameter, and what its steps did."""

    optimizer: Any
    param: Parameter
    function: Function
    calls: int = 0
    sign: float = 1.0
    noise: torch.Generator | None = None  # of the last bits of loss and gradient

    def closure(self) -> Tensor:
        self.calls += 1
        self.optimizer.zero_grad()
        loss = self.sign * self.function(self.param)
        loss.backward()
        if self.noise is None:
            return loss
        assert self.param.grad is not None
        self.param.grad *= self._shaken(self.param.grad)
        return loss * self._shaken(loss)

    def _shaken(self, like: Tensor) -> Tensor:
        return 1 + 3e-16 * torch.randint(-1, 2, like.shape, generator=self.noise).double()

    def steps(self, count: int) -> list[tuple[float, int, Tensor]]:
        """The first loss, the calls so far and the parameter, after every step."""
        done = []
        for _ in range(count):
            loss = self.optimizer.step(self.closure)
            done.append((loss.item(), self.calls, self.param.detach().clone()))
        return done


def run(cls: Any, function: Function, param: Parameter, **options: Any) -> Run:
    return Run(cls([param], **options), param, function)


def distance(one: Tensor, other: Tensor) -> float:
    return ((one - other).abs().max() / other.abs().max()).item()

"""Functions to minimize, and runs of LBFGS on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from optgen.optim import LBFGS

Function = Callable[[Tensor], Tensor]


def rosenbrock(size: int) -> Function:
    """Return Rosenbrock's function: a long curved valley."""
    assert size > 1

    def function(x: Tensor) -> Tensor:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    return function


def quadratic(size: int, seed: int = 1) -> Function:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, dtype=torch.float64, generator=generator)
    matrix = root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)
    vector = torch.randn(size, dtype=torch.float64, generator=generator)

    def function(x: Tensor) -> Tensor:
        return 0.5 * x @ matrix.to(x) @ x - vector.to(x) @ x

    return function


def logistic(size: int, seed: int = 2) -> Function:
    generator = torch.Generator().manual_seed(seed)
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
    """An optimizer with a function of one parameter, and a record of its steps."""

    optimizer: Any
    param: Parameter
    function: Function
    calls: int = 0
    sign: float = 1.0
    noise: torch.Generator | None = None  # adds noise to the last bits of loss and gradient

    def closure(self) -> Tensor:
        self.calls += 1
        self.optimizer.zero_grad()
        loss = self.sign * self.function(self.param)
        loss.backward()
        if self.noise is None:
            return loss
        assert self.param.grad is not None
        self.param.grad *= self._noise_factor(self.param.grad)
        return loss * self._noise_factor(loss)

    def _noise_factor(self, like: Tensor) -> Tensor:
        return 1 + 3e-16 * torch.randint(-1, 2, like.shape, generator=self.noise).double()

    def steps(self, count: int) -> list[tuple[float, int, Tensor]]:
        """Return (the closure's first loss, all calls so far, the parameter) for each step."""
        records = []
        for _ in range(count):
            loss = self.optimizer.step(self.closure)
            records.append((loss.item(), self.calls, self.param.detach().clone()))
        return records


def run(cls: Any, function: Function, param: Parameter, **options: Any) -> Run:
    return Run(cls([param], **options), param, function)


def distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected number."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def assert_torchs_path(function: Function, begin: Tensor, steps: int, **options: Any) -> None:
    """Check that our path is torch's, to 1e-12, or to ten times torch's own sensitivity.

    Torch's sensitivity is the change of its path when the last bits of loss and gradient change.
    """

    def path(cls: Any, seed: int | None = None) -> list[tuple[float, int, Tensor]]:
        running = run(cls, function, Parameter(begin.clone()), **options)
        running.sign = -1.0 if options.get("maximize") else 1.0
        running.noise = None if seed is None else torch.Generator().manual_seed(seed)
        return running.steps(steps)

    ours, theirs = path(LBFGS), path(torch.optim.LBFGS)
    if alike(ours, theirs, 1e-12):
        return
    noise = 0.0
    nearby = [path(torch.optim.LBFGS, seed) for seed in range(3)]
    for found, expected, *others in zip(ours, theirs, *nearby, strict=True):
        noise = max(noise, *(distance(other[2], expected[2]) for other in others))
        if noise > 1e-3 or not expected[2].isfinite().all():
            break  # from here on rounding decides torch's path
        assert distance(found[2], expected[2]) <= max(1e-12, 10 * noise)
        if noise < 1e-9:
            assert found[1] == expected[1]


def alike(found: list[Any], expected: list[Any], bound: float) -> bool:
    """Tell whether the closure calls are equal, and losses and parameters within a bound."""
    scale = abs(expected[0][0])
    return all(
        mine[1] == theirs[1]
        and abs(mine[0] - theirs[0]) <= bound * scale
        and distance(mine[2], theirs[2]) <= bound
        for mine, theirs in zip(found, expected, strict=True)
    )

"""Functions to minimize, and runs of LBFGS on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from optgen.optim import LBFGS

Function = Callable[[Tensor], Tensor]


def rosenbrock(size: int) -> Function:
    """Return Rosenbrock's function, which has a long curved valley."""
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


def start_point(size: int, dtype: torch.dtype = torch.float64) -> Parameter:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(size, dtype=torch.float64, generator=generator)
    return Parameter((0.5 * values).to(dtype))


class StepRecord(NamedTuple):
    """The result of one step."""

    loss: float  # the closure's first loss in this step
    calls: int  # calls of the closure in all steps so far
    param: Tensor  # the parameter after this step


@dataclass
class Run:
    """An optimizer that minimizes a function of one parameter, and its count of closure calls."""

    optimizer: Any
    param: Parameter
    function: Function
    calls: int = 0
    sign: float = 1.0  # -1 to maximize the function
    noise: torch.Generator | None = None  # changes the last bits of loss and gradient

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

    def take_steps(self, count: int) -> list[StepRecord]:
        records = []
        for _ in range(count):
            loss = self.optimizer.step(self.closure)
            records.append(StepRecord(loss.item(), self.calls, self.param.detach().clone()))
        return records


def new_run(cls: Any, function: Function, param: Parameter, **options: Any) -> Run:
    return Run(cls([param], **options), param, function)


def distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected number."""
    if torch.equal(found, expected):
        return 0.0  # also if all numbers are 0
    return ((found - expected).abs().max() / expected.abs().max()).item()


def assert_torchs_path(function: Function, start: Tensor, steps: int, **options: Any) -> None:
    """Check that our path is torch's, to 1e-12, or to ten times torch's sensitivity to rounding.

    The sensitivity is the change of torch's path when the last bits of loss and gradient change.
    """

    def path(cls: Any, seed: int | None = None) -> list[StepRecord]:
        run = new_run(cls, function, Parameter(start.clone()), **options)
        run.sign = -1.0 if options.get("maximize") else 1.0
        run.noise = None if seed is None else torch.Generator().manual_seed(seed)
        return run.take_steps(steps)

    ours, theirs = path(LBFGS), path(torch.optim.LBFGS)
    if paths_agree(ours, theirs, 1e-12):
        return
    sensitivity = 0.0
    noisy_paths = [path(torch.optim.LBFGS, seed) for seed in range(3)]
    for found, expected, *noisy in zip(ours, theirs, *noisy_paths, strict=True):
        sensitivity = max(sensitivity, *(distance(each.param, expected.param) for each in noisy))
        if sensitivity > 1e-3 or not expected.param.isfinite().all():
            break  # from here on rounding decides torch's path
        assert distance(found.param, expected.param) <= max(1e-12, 10 * sensitivity)
        if sensitivity < 1e-9:
            assert found.calls == expected.calls


def paths_agree(found: list[StepRecord], expected: list[StepRecord], bound: float) -> bool:
    """Tell whether closure calls are equal, and losses and parameters equal within a bound."""
    scale = abs(expected[0].loss)
    return all(
        mine.calls == theirs.calls
        and abs(mine.loss - theirs.loss) <= bound * scale
        and distance(mine.param, theirs.param) <= bound
        for mine, theirs in zip(found, expected, strict=True)
    )

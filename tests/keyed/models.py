"""Parameters, gradients and optimizers of both libraries for tests of keyed optimizers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import optgen.optim
from optgen.keyed import KeyedOptimizer, KeyedOptimizerWrapper

LIBRARIES = [torch.optim, optgen.optim]
IDS = ["torch", "optgen"]


def parameters(seed: int = 0) -> dict[str, Tensor]:
    """Return a matrix and a vector."""
    torch.manual_seed(seed)
    shapes = {"weight": (3, 2), "bias": (2,)}
    return {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def train(optimizer: Any, steps: int, seed: int = 1) -> None:
    """Take steps with random gradients, which depend on the parameter's position and the step."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()


def keyed_adamw(params: dict[str, Tensor], library: Any = optgen.optim, **options: Any) -> Any:
    """Return a keyed AdamW."""
    return KeyedOptimizerWrapper(params, lambda each: library.AdamW(each, **options))


class NoOpOptimizer(KeyedOptimizer):
    """A keyed optimizer that leaves its parameters as they are."""

    def step(self, closure: Callable[[], float] | None = None) -> None:
        pass


def content(checkpoint: Any) -> Any:
    """Return a checkpoint with its tensors as lists, to compare by ==."""
    if isinstance(checkpoint, dict):
        return {key: content(value) for key, value in checkpoint.items()}
    if isinstance(checkpoint, (list, tuple)):
        return [content(each) for each in checkpoint]
    return checkpoint.tolist() if isinstance(checkpoint, Tensor) else checkpoint

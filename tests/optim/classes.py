"""Helpers for tests that compare every class of optgen.optim with torch's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from parity.classes import CLOSURE_CLASSES, MATRIX_CLASSES, NAMES, SPARSE_CLASSES
from torch import Tensor

import optgen.optim
from optgen.runtime import GeneratedOptimizer

CLASSES = sorted(
    name for name in NAMES if issubclass(getattr(optgen.optim, name), GeneratedOptimizer)
)
"""Classes generated from a rule: all but LBFGS."""

SHAPES = ((3, 2), (2, 2), (4,))


def ours_and_torchs(name: str) -> tuple[Any, Any]:
    """Return our class and torch's."""
    return getattr(optgen.optim, name), getattr(torch.optim, name)


def takes(name: str, argument: str) -> bool:
    """Tell whether torch's class takes this argument."""
    return argument in inspect.signature(getattr(torch.optim, name)).parameters


def parameters(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Return random parameters whose shapes the class accepts."""
    generator = torch.Generator().manual_seed(seed)
    shapes = SHAPES[:2] if name in MATRIX_CLASSES else SHAPES
    drawn = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return [torch.nn.Parameter(value.to(dtype)) for value in drawn]


def give_gradients(name: str, params: list[Tensor], step: int = 0) -> None:
    """Set gradients that depend on the step. They are sparse for classes in SPARSE_CLASSES."""
    generator = torch.Generator().manual_seed(1000 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(param.dtype)
        param.grad = grad.to_sparse(1) if name in SPARSE_CLASSES else grad


def closure(name: str, params: list[Tensor]) -> Callable[[], Tensor] | None:
    """Return a closure for a class that evaluates the loss itself; None for other classes."""
    if name not in CLOSURE_CLASSES:
        return None

    def evaluate() -> Tensor:
        for param in params:
            param.grad = None
        loss = sum(((param - 1) ** 4 + param**2).sum() for param in params)
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss

    return evaluate


def train(name: str, optimizer: Any, params: list[Tensor], steps: int = 3, start: int = 0) -> None:
    """Take steps with gradients that depend on the step only."""
    for step in range(start, start + steps):
        give_gradients(name, params, step)
        evaluate = closure(name, params)
        optimizer.step(*([evaluate] if evaluate else []))


def outcome(action: Callable[[], Any]) -> Any:
    """Return an action's result, or its error's type and message."""
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def states(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value in an optimizer's state, with its key and the parameter's index."""
    for index, values in enumerate(optimizer.state.values()):
        for key, value in values.items():
            yield f"{key} of {index}", value

"""Train two optimizers alike, and measure how far apart they end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from interpreter import INTERPRETED
from torch import Tensor
from torch.optim import Optimizer

from optgen import use_lowering

BOUND = 1e-12  # float64, 50 steps: max|a - b| / max|b| of every tensor
Make = Callable[[Any], Optimizer]


@dataclass
class Run:
    """An optimizer after its steps, and its parameters in order."""

    optimizer: Optimizer
    params: list[Tensor]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and every state, with names to say which one is wrong."""
        for index, param in enumerate(self.params):
            yield f"parameter {index}", param.detach()
            for key, value in self.optimizer.state.get(param, {}).items():
                yield f"{key} of parameter {index}", value


def values(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Normally distributed numbers; the same ones, rounded, whatever the dtype."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for shape in shapes:
        value = torch.randn(shape, dtype=torch.float64, generator=generator)
        if dtype.is_complex:
            imaginary = torch.randn(shape, dtype=torch.float64, generator=generator)
            value = torch.complex(value, imaginary)
        drawn.append(value.to(dtype))
    return drawn


def parameters(
    shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, seed: int = 0
) -> list[Tensor]:
    return [torch.nn.Parameter(value) for value in values(shapes, dtype, seed)]


def train(run: Run, steps: int, start: int = 0, skip: bool = False) -> None:
    """Take steps with gradients that depend on the step only; with `skip` some have none."""
    shapes = [tuple(param.shape) for param in run.params]
    for step in range(start, start + steps):
        drawn = values(shapes, torch.float64, 1000 + step)
        for index, (param, grad) in enumerate(zip(run.params, drawn, strict=True)):
            if param.is_complex():
                grad = torch.complex(grad, grad.flip(0) if grad.dim() else -grad)
            absent = skip and (step + index) % 5 == 4
            param.grad = None if absent else torch.empty_like(param).copy_(grad)
        run.optimizer.step()


SHAPES = ((3, 4), (), (0,), (2, 3, 2), (17,))
LATE = ((4, 3), (5,))
FEW: tuple[tuple[int, ...], ...] = ((515,), ())
"""Where every block takes an interpreter a millisecond: one block and a bit, and one element."""


def eventful(make: Make, steps: int = 50, dtype: torch.dtype = torch.float64) -> Run:
    """A training where all that a loop may do happens.

    Two groups with different numbers, gradients that are sometimes absent, a group that joins after
    a fifth of the steps, and learning rates that change after three fifths.
    """
    shapes, joining = (FEW, LATE[1:]) if INTERPRETED else (SHAPES, LATE)
    params, late = parameters(shapes, dtype), parameters(joining, dtype, seed=7)
    half = -(-len(params) // 2)
    run = Run(make([{"params": params[:half]}, {"params": params[half:]}]), params)
    first, second = run.optimizer.param_groups
    _vary(second, 1.5)
    fifth = steps // 5
    train(run, fifth, skip=True)
    run.optimizer.add_param_group({"params": late, "lr": first["lr"]})
    _vary(run.optimizer.param_groups[2], 0.5)
    run.params = [*params, *late]
    train(run, 2 * fifth, fifth, skip=True)
    for group in run.optimizer.param_groups:
        group["lr"] = group["lr"] * 0.3
    train(run, steps - 3 * fifth, 3 * fifth, skip=True)
    return run


def _vary(group: dict[str, Any], factor: float) -> None:
    for key in ("lr", "weight_decay", "eps", "momentum_decay"):
        if key in group:
            group[key] = group[key] * factor


def assert_close(found: Run, expected: Run, bound: float = BOUND) -> None:
    """Same tensors by name, and none further from the expected one than the bound."""
    ours, theirs = dict(found.tensors()), dict(expected.tensors())
    assert list(ours) == list(theirs)
    errors = {name: error(ours[name], theirs[name]) for name in ours}
    assert all(e <= bound for e in errors.values()), {
        name: e for name, e in errors.items() if not e <= bound
    }


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest expected element; 0 between empty ones."""
    assert found.shape == expected.shape
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    found, expected = found.detach().to(wide), expected.detach().to(wide)
    difference = (found - expected).abs().max()
    if difference == 0:
        return 0.0
    return float(difference / expected.abs().max())


def through(lowering: str | None) -> contextlib.AbstractContextManager[None]:
    """Force a lowering, or none."""
    return use_lowering(lowering) if lowering else contextlib.nullcontext()

"""Parameters in two groups, gradients for them, and comparisons of two optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from interpreter import INTERPRETED
from torch import Tensor

from optgen import use_lowering

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
SHAPES = ((3, 4), (5,), (3, 4), (2, 2, 3))
SHAPES_UP_TO_2D = ((3, 4), (5,), (3, 4), (4, 3))
STEPS = 6 if INTERPRETED else 12
BOUND = 1e-12
"""Bound on relative differences of numbers that are computed in float64."""


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [each.to(dtype).requires_grad_() for each in values]


def two_groups(params: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return two groups with learning rates of their own."""
    return [{"params": [*params[:2]], "lr": 0.02}, {"params": [*params[2:]], "lr": 0.05}]


def params_and_lrs(optimizer: Any) -> Iterator[tuple[Tensor, float]]:
    """Yield every parameter with its learning rate."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            yield param, group["lr"]


def give_gradients(params: Iterable[Tensor], seed: int) -> None:
    """Set random gradients. The seed also decides their magnitude."""
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        drawn = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        param.grad = (drawn * (0.05, 3.0, 0.4)[seed % 3]).to(param.dtype)


def difference(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """Return the largest difference of two tensors, relative to the largest element of theirs."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(ours, theirs, strict=True)]
    return max(((a - b).abs().max() / b.abs().max()).nan_to_num(torch.inf).item() for a, b in pairs)


def check_same_path(
    optimizer: Any, by_hand: Any, lowering: str, steps: int = STEPS, bound: float = BOUND
) -> None:
    """Check that two optimizers with equal gradients have equal parameters after every step.

    `by_hand` has `params` and `step()`.
    """
    params = [param for param, _ in params_and_lrs(optimizer)]
    for seed in range(steps):
        give_gradients(params, seed)
        give_gradients(by_hand.params, seed)
        with use_lowering(lowering):
            optimizer.step()
        by_hand.step()
        assert difference(params, by_hand.params) < bound, f"step {seed + 1}"

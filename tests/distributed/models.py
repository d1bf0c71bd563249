"""A small network on two ranks, each with half of the batch, and the same network alone."""

from __future__ import annotations

from typing import Any

import torch
from distributed.cases import difference
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

STEPS = 4
BOUND = 1e-12
"""Bound on differences in float64: two ranks sum over a batch in another order than one process."""


def model() -> nn.Sequential:
    """Return layers of 8 rows (equal shards on two ranks), 5 (unequal) and 1 (an empty shard)."""
    torch.manual_seed(1)
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1)]
    return nn.Sequential(*layers).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return the 8 inputs and targets of a step, 4 for each rank."""
    generator = torch.Generator().manual_seed(100 + step)
    return tuple(
        torch.randn(8, width, generator=generator, dtype=torch.float64) for width in (6, 1)
    )


def half(rank: int, whole: Tensor) -> Tensor:
    """Return a rank's part of a batch."""
    return whole[4 * rank : 4 * rank + 4]


def train(
    network: nn.Module, optimizer: Optimizer, rank: int | None = None, start: int = 0
) -> None:
    """Take steps on whole batches or, if a rank is given, on its half of each."""
    for step in range(start, start + STEPS):
        inputs, targets = batch(step)
        if rank is not None:
            inputs, targets = half(rank, inputs), half(rank, targets)
        loss = mse_loss(network(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def differences(
    ours: tuple[nn.Module, Optimizer], alone: tuple[nn.Module, Optimizer]
) -> dict[str, float]:
    """Return the differences of parameters and states that exceed the bound, by name."""
    results = {}
    params = zip(ours[0].parameters(), alone[0].named_parameters(), strict=True)
    for param, (name, expected) in params:
        results[name] = difference(param.detach(), expected.detach())
        states: dict[str, Any] = ours[1].state[param]
        assert list(states) == list(alone[1].state[expected])
        for key, value in alone[1].state[expected].items():
            results[f"{key} of {name}"] = difference(states[key], value)
    return {name: value for name, value in results.items() if value > BOUND}

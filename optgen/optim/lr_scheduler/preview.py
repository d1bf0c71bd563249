"""Preview the rates that a scheduler will set, without an optimizer."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch
from torch.optim import Optimizer

from optgen.runtime.light_optimizer import LightOptimizer


class _EmptyOptimizer(LightOptimizer):
    """Optimizer with groups for schedulers to change. The parameters have no elements."""

    def __init__(self, rates: Sequence[float]) -> None:
        groups: list[dict[str, Any]] = [{"params": [torch.zeros(0)], "lr": lr} for lr in rates]
        super().__init__(groups, {"lr": 0.0, "momentum": 0.0})
        self._opt_called = True  # suppresses the warning about the order of steps


@overload
def preview(
    schedule: Callable[[Optimizer], Any],
    steps: int,
    lr: float = 1.0,
    *,
    metrics: Iterable[float] | None = None,
    key: str = "lr",
) -> list[float]: ...


@overload
def preview(
    schedule: Callable[[Optimizer], Any],
    steps: int,
    lr: Sequence[float],
    *,
    metrics: Iterable[float] | None = None,
    key: str = "lr",
) -> list[list[float]]: ...


def preview(
    schedule: Callable[[Optimizer], Any],
    steps: int,
    lr: float | Sequence[float] = 1.0,
    *,
    metrics: Iterable[float] | None = None,
    key: str = "lr",
) -> list[float] | list[list[float]]:
    """Return the learning rates with which an optimizer would take its first steps.

    ``preview(lambda optimizer: CosineAnnealingLR(optimizer, 100), steps=100, lr=0.1)``

    Args:
        schedule: Makes the scheduler, ours or torch's, for the optimizer it is called with.
        steps: How many rates to return; the first is the one before any step.
        lr: The optimizer's learning rate; of a sequence, each rate makes a group. Default: 1.
        metrics: For `ReduceLROnPlateau`: the metric after each step but the last.
        key: The group value to return; "momentum" for a schedule that cycles it. Default: "lr".

    Returns:
        A list of `steps` rates; if `lr` is a sequence, one such list for each group.
    """
    optimizer = _EmptyOptimizer(list(lr) if isinstance(lr, Sequence) else [lr])
    scheduler = schedule(optimizer)
    remaining_metrics = iter(metrics) if metrics is not None else None
    rates_by_group: list[list[float]] = [[] for _ in optimizer.param_groups]
    for step in range(steps):
        if step > 0:
            scheduler.step(*([] if remaining_metrics is None else [next(remaining_metrics)]))
        for rates, group in zip(rates_by_group, optimizer.param_groups, strict=True):
            rates.append(float(group[key]))
    return rates_by_group if isinstance(lr, Sequence) else rates_by_group[0]

"""Schedules of the logs: functions of the step in the logged training."""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[float], float]
"""Takes the number of a step, counted from 0; returns the factor of a learning rate."""


def cooldown(steps: int, share: float, power: float = 1.0, low: float = 0.0) -> Schedule:
    """Return a schedule that is 1, and falls to `low` during the last `share` of all steps."""

    def factor(step: float) -> float:
        remaining = max(0.0, (1 - step / steps) / share)
        return 1.0 if remaining > 1 else low + (1 - low) * remaining**power

    return factor


def with_warmup(steps: int, schedule: Schedule) -> Schedule:
    """Return a schedule that also warms up linearly during the first `steps`."""
    return lambda step: min(1.0, (step + 1) / steps) * schedule(step)


def power_cooldown(steps: int, slope: float, power: float = 1.2) -> Schedule:
    """Return a schedule: the slope times a power of the number of steps left, but at most 1."""
    return lambda step: min(1.0, slope * max(0.0, steps - step) ** power)

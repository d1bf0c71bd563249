"""Options that scripts set in each step, besides the learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable

from examples.track3.result import Options
from examples.track3.schedules import cooldown, power_cooldown


def look_ahead_39(step: float) -> Options:
    """Return `look_ahead` of result 39, which is 0 in the first and the last steps."""
    ahead = 0.6 * cooldown(3150, 0.7)(step) if 500 <= step + 1 < 2400 else 0.0
    return {"look_ahead": ahead}


def trust(step: float) -> Options:
    """Return the bounds of result 16's gate. They open to (0, 1) by step 1625."""
    lower = 0.45 * min(1.0, (1625 - step) / 250)
    return {"trust": (lower, 0.85) if step < 1625 else (0.0, 1.0)}


def spectral_power(step: float) -> Options:
    """Return result 28's power of singular values, which falls from 1/4 to -1/4 around step 128."""
    progress = (step / 3200 - 0.04) / 0.04
    return {"spectral_power": -0.25 + 0.5 / (1 + math.exp(progress))}


def shares(step: float) -> Options:
    """Return result 20's shares: `contra`, that of the momentum, falls; `soft` grows."""
    soft = min(0.8, max(0.0, (step - 2500) / (3010 - 2500)))
    return {"contra": 0.2 * (1 - min(1.0, step / 2000)), "soft": soft}


def shares_and_pull(step: float) -> Options:
    """Return result 20's shares, and result 32's pull of weights to their initial values."""
    progress = min(1.0, max(0.0, (step - 2000) / (2750 - 2000)))
    return {**shares(step), "pull": 0.5 * (1 + math.cos(math.pi * progress))}


def aurora_options(steps: int) -> Callable[[float], Options]:
    """Return the function from a step to Aurora's options.

    `momentum` grows in the first 300 steps and falls in the last 100; `contra` falls.
    """

    def options(step: float) -> Options:
        fall = min(1.0, max(1 - step / 300, (step - steps + 100) / 100, 0.0))
        return {"momentum": 0.95 - 0.1 * fall, "contra": 0.2 * (1 - min(1.0, step / 2500))}

    return options


def look_ahead_40(step: float) -> Options:
    """Return `look_ahead` of result 40, which is proportional to the embedding's rate."""
    rate = power_cooldown(2980, 4.976805410800738e-05 / 0.3)(step)
    return {"look_ahead": 0.3 * rate if 300 <= step + 1 < 1950 else 0.0}

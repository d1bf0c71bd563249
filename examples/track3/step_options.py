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


def momentum(step: float, steps: int, last: int) -> float:
    """Return a momentum that grows in the first 300 steps and falls in the `last` ones."""
    fall = min(1.0, max(1 - step / 300, (step - steps + last) / last, 0.0))
    return 0.95 - 0.1 * fall


def aurora_options(steps: int) -> Callable[[float], Options]:
    """Return the function from a step to Aurora's options: `momentum`, and `contra`, that falls."""

    def options(step: float) -> Options:
        return {"momentum": momentum(step, steps, 100), "contra": 0.2 * (1 - min(1.0, step / 2500))}

    return options


def look_ahead_until(end: int) -> Callable[[float], Options]:
    """Return the function from a step to `look_ahead`, proportional to the embedding's rate."""

    def options(step: float) -> Options:
        rate = power_cooldown(end, 4.976805410800738e-05 / 0.3)(step)
        return {"look_ahead": 0.3 * rate if 300 <= step + 1 < 1950 else 0.0}

    return options


look_ahead_40, look_ahead_44 = look_ahead_until(2980), look_ahead_until(2900)


def soap_muon_options(step: float) -> Options:
    """Return the options that results 44 and 46 set for matrices: `momentum` and `trust`."""
    return {"momentum": momentum(step, 2900, 200), **trust(step)}


def tail_share(step: float) -> Options:
    """Return the share of result 46's new weights in the mean of the last ones."""
    share = 1.0 if step + 1 <= 2400 else 1 / 150
    return {"tail_share": share if step + 1 < 2900 else 0.0}

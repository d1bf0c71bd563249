"""Steps of Schedule-Free optimizers, written from the paper with the numbers of its code.

The parameters are the points y where gradients are taken. `state` holds the average x, and
the z that the base optimizer steps.
"""

from __future__ import annotations

from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import State, by_parameter
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY, radam_factor


def schedule_free_adamw(y: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Schedule-Free AdamW: algorithm 1, with the code's warmup."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg_sq"] = 0.999 * state.get("exp_avg_sq", 0) + 0.001 * g * g
    u = g / ((state["exp_avg_sq"] / (1 - 0.999**t)).sqrt() + 1e-8) + DECAY * y
    return step_and_average(y, u, LR * min(t / 5, 1), state)


def schedule_free_sgd(y: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Schedule-Free SGD: equations 3 to 5, with a warmup."""
    state["t"] = t = state.get("t", 0) + 1
    return step_and_average(y, g + DECAY * y, LR * min(t / 5, 1), state)


def step_and_average(y: Tensor, u: Tensor, rate: float, state: State) -> Tensor:
    """Move z along an update, add z to the average x, and return the next y.

    The weight of z is the square of the largest rate so far.
    """
    x, z = state.get("x", y), state.get("z", y)
    state["lr_max"] = max(state.get("lr_max", 0.0), rate)
    weight = state["lr_max"] ** 2
    state["weight_sum"] = state.get("weight_sum", 0.0) + weight
    fraction = weight / state["weight_sum"] if weight else 0.0
    state["z"] = z - rate * u
    state["x"] = (1 - fraction) * x + fraction * state["z"]
    return 0.9 * state["x"] + 0.1 * state["z"]


def schedule_free_radam(y: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Schedule-Free RAdam, as in its authors' package."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg_sq"] = 0.99 * state.get("exp_avg_sq", 0) + 0.01 * g * g
    factor = radam_factor(t, 0.99, 4)
    if factor is None:
        rate = 0.0
    else:
        rate = LR * factor
        g = g / ((state["exp_avg_sq"] / (1 - 0.99**t)).sqrt() + 1e-8)
    return step_and_average(y, g + DECAY * y, rate, state)


CASES = (
    Case(
        "schedule_free_adamw", by_parameter(schedule_free_adamw), LR_AND_DECAY | {"warmup_steps": 5}
    ),
    Case("schedule_free_sgd", by_parameter(schedule_free_sgd), LR_AND_DECAY | {"warmup_steps": 5}),
    Case(
        "schedule_free_radam",
        by_parameter(schedule_free_radam),
        LR_AND_DECAY | {"betas": (0.9, 0.99)},
    ),
)

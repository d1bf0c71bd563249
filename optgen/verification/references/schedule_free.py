"""Steps of Schedule-Free optimizers, written from the paper with the numbers of its code.

The parameters are the points y where gradients are taken. `own` holds the average x and the z.
"""

from __future__ import annotations

from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import Values, alone
from optgen.verification.references.moments import BOTH, DECAY, LR, rectified


def schedule_free_adamw(y: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Schedule-Free AdamW: algorithm 1, with the code's warmup."""
    own["t"] = t = own.get("t", 0) + 1
    own["exp_avg_sq"] = 0.999 * own.get("exp_avg_sq", 0) + 0.001 * g * g
    u = g / ((own["exp_avg_sq"] / (1 - 0.999**t)).sqrt() + 1e-8) + DECAY * y
    return averaged(y, u, LR * min(t / 5, 1), own)


def schedule_free_sgd(y: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Schedule-Free SGD: equations 3 to 5, with a warmup."""
    own["t"] = t = own.get("t", 0) + 1
    return averaged(y, g + DECAY * y, LR * min(t / 5, 1), own)


def averaged(y: Tensor, u: Tensor, rate: float, own: Values) -> Tensor:
    """Move z along an update, add z to the average x, and return the next y.

    The weight of z is the square of the largest rate so far.
    """
    x, z = own.get("x", y), own.get("z", y)
    own["lr_max"] = max(own.get("lr_max", 0.0), rate)
    weight = own["lr_max"] ** 2
    own["weight_sum"] = own.get("weight_sum", 0.0) + weight
    fraction = weight / own["weight_sum"] if weight else 0.0
    own["z"] = z - rate * u
    own["x"] = (1 - fraction) * x + fraction * own["z"]
    return 0.9 * own["x"] + 0.1 * own["z"]


def schedule_free_radam(y: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Schedule-Free RAdam, as in its authors' package."""
    own["t"] = t = own.get("t", 0) + 1
    own["exp_avg_sq"] = 0.99 * own.get("exp_avg_sq", 0) + 0.01 * g * g
    factor = rectified(t, 0.99, 4)
    if factor is None:
        rate = 0.0
    else:
        rate = LR * factor
        g = g / ((own["exp_avg_sq"] / (1 - 0.99**t)).sqrt() + 1e-8)
    return averaged(y, g + DECAY * y, rate, own)


CASES = (
    Case("schedule_free_adamw", alone(schedule_free_adamw), BOTH | {"warmup_steps": 5}),
    Case("schedule_free_sgd", alone(schedule_free_sgd), BOTH | {"warmup_steps": 5}),
    Case("schedule_free_radam", alone(schedule_free_radam), BOTH | {"betas": (0.9, 0.99)}),
)

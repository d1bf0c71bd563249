"""Steps of rules without a schedule or a rate to tune, each written from its paper.

Schedule-Free optimizers have the numbers of their code. Their parameters are the points y where
gradients are taken; `state` holds the average x, and the z that the base optimizer steps.
Learning-rate-free rules reduce over all parameters. In their `state`, a state that every parameter
has is a list with an entry for each parameter.
"""

from __future__ import annotations

import math

from torch import Tensor

from optgen.verification.case import Case, State, by_parameter, over_all_parameters
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


SCHEDULE_FREE = (
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


def prodigy(params: list[Tensor], grads: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of Prodigy, on which the paper and the code agree."""
    beta1, beta2, beta3, d0 = 0.9, 0.99, math.sqrt(0.99), 1e-3
    starts = state.setdefault("p0", params)
    state["k"] = k = state.get("k", 0) + 1
    d = state.get("d", d0)
    lr = 1.0
    rate = d * lr * math.sqrt(1 - beta2**k) / (1 - beta1**k)
    ms, vs, ss = (state.get(name, [0] * len(params)) for name in ("exp_avg", "exp_avg_sq", "s"))
    inner = sum((g * (x - p)).sum().item() for g, x, p in zip(grads, starts, params, strict=True))
    state["d_numerator"] = beta3 * state.get("d_numerator", 0) + d / d0 * rate * inner
    state["exp_avg"] = [0.9 * m + 0.1 * d * g for m, g in zip(ms, grads, strict=True)]
    state["exp_avg_sq"] = [0.99 * v + 0.01 * d**2 * g**2 for v, g in zip(vs, grads, strict=True)]
    state["s"] = [beta3 * s + d / d0 * rate * g for s, g in zip(ss, grads, strict=True)]
    d_hat = state["d_numerator"] / sum(s.abs().sum().item() for s in state["s"])
    state["d_max"] = max(state.get("d_max", d0), d_hat)
    state["d"] = min(state["d_max"], (max(d, d_hat) if d == d0 else d) * 1.5)
    return [
        p * (1 - 0.1 * rate) - rate * m / (v.sqrt() + state["d"] * 1e-8)
        for p, m, v in zip(params, state["exp_avg"], state["exp_avg_sq"], strict=True)
    ]


def dadapt_adam(params: list[Tensor], grads: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of D-Adapt Adam, on which the paper and the code agree."""
    sqrt_beta2, d = math.sqrt(0.99), state.get("d", 1e-3)
    state["k"] = state.get("k", 0) + 1
    zeros = [g * 0 for g in grads]
    ms, vs, ss = (state.get(name, zeros) for name in ("exp_avg", "exp_avg_sq", "s"))
    inner = sum(
        (g * s / (v.sqrt() + 1e-8)).sum().item() for g, s, v in zip(grads, ss, vs, strict=True)
    )
    old_numerator = state.get("numerator_weighted", 0)
    state["numerator_weighted"] = sqrt_beta2 * old_numerator + (1 - sqrt_beta2) * d * inner
    state["exp_avg"] = [0.9 * m + 0.1 * d * g for m, g in zip(ms, grads, strict=True)]
    state["exp_avg_sq"] = [0.99 * v + 0.01 * g**2 for v, g in zip(vs, grads, strict=True)]
    state["s"] = [sqrt_beta2 * s + (1 - sqrt_beta2) * d * g for s, g in zip(ss, grads, strict=True)]
    s_norm = sum(s.abs().sum().item() for s in state["s"])
    state["d"] = max(d, min(state["numerator_weighted"] / ((1 - sqrt_beta2) * s_norm), d * 1.5))
    return [
        p * (1 - 0.1 * d) - m / (v.sqrt() + 1e-8)
        for p, m, v in zip(params, state["exp_avg"], state["exp_avg_sq"], strict=True)
    ]


OPTIONS = {"betas": (0.9, 0.99), "weight_decay": 0.1, "d0": 1e-3, "growth_rate": 1.5}
LEARNING_RATE_FREE = (
    Case("prodigy", over_all_parameters(prodigy), OPTIONS | {"use_bias_correction": True}),
    Case("dadapt_adam", over_all_parameters(dadapt_adam), OPTIONS | {"decouple": True}),
)

CASES = (*SCHEDULE_FREE, *LEARNING_RATE_FREE)

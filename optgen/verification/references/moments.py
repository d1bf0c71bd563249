"""Formulas that several rules share: the moments of Adam, RAdam's factor, decays by half-lives."""

from __future__ import annotations

import math

from torch import Tensor

from optgen.verification.reference import State

LR, DECAY = 0.01, 0.1
ONLY_LR = {"lr": LR}
LR_AND_DECAY = {**ONLY_LR, "weight_decay": DECAY}
"""Options of most cases."""


def moments(
    g: Tensor, state: State, betas: tuple[float, float], square: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Count the step, update both moments of Adam, and return them with bias correction."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg"] = betas[0] * state.get("exp_avg", 0) + (1 - betas[0]) * g
    square = g.square() if square is None else square
    state["exp_avg_sq"] = betas[1] * state.get("exp_avg_sq", 0) + (1 - betas[1]) * square
    return state["exp_avg"] / (1 - betas[0] ** t), state["exp_avg_sq"] / (1 - betas[1] ** t)


def radam_factor(t: int, beta2: float, min_length: float) -> float | None:
    """Return RAdam's factor at step `t`; None while its average is shorter than `min_length`."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    if length < min_length:
        return None
    ratio = (length - 4) / (longest - 4) * (length - 2) / (longest - 2)
    return math.sqrt(ratio * longest / length)


def half_life(beta: float) -> float:
    """Return the half-life of a decay in steps, less one, as apple/ml-ademamix counts it."""
    return math.log(0.5) / math.log(beta + 1e-8) - 1


def interpolated_decay(start: float, end: float, share: float) -> float:
    """Return the decay whose half-life is interpolated between those of `start` and `end`."""
    return 0.5 ** (1 / ((1 - share) * half_life(start) + share * half_life(end) + 1))

"""Steps of rules with row and column states, each written from its paper or from code."""

from __future__ import annotations

import math

from torch import Tensor

from optgen.verification.case import MATRICES, Case
from optgen.verification.reference import State, by_parameter
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY


def adafactor(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adafactor: algorithms 4 and 5, with relative steps."""
    rate = min(1e-2, 1 / math.sqrt(state.get("t", 0) + 1))
    return factored_step(p, g, state, beta1=None, rate=rate, is_rate_relative=True)


def adafactor_with_momentum(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adafactor with a fixed rate and with momentum, as in the library."""
    return factored_step(p, g, state, beta1=0.9, rate=LR, is_rate_relative=False)


def factored_step(
    p: Tensor, g: Tensor, state: State, beta1: float | None, rate: float, is_rate_relative: bool
) -> Tensor:
    """Take a step of Adafactor; a relative rate is multiplied by the parameter's size."""
    state["t"] = t = state.get("t", 0) + 1
    beta2, square = 1 - t**-0.8, g * g + 1e-30
    if p.dim() > 1:
        for key, axis in (("exp_avg_sq_row", -1), ("exp_avg_sq_col", -2)):
            state[key] = beta2 * state.get(key, 0) + (1 - beta2) * square.mean(axis, keepdim=True)
        row, col = state["exp_avg_sq_row"], state["exp_avg_sq_col"]
        estimate = row / row.mean(-2, keepdim=True) * col
    else:
        state["exp_avg_sq"] = beta2 * state.get("exp_avg_sq", 0) + (1 - beta2) * square
        estimate = state["exp_avg_sq"]
    u = g * estimate.rsqrt()
    rate *= max(1e-3, p.square().mean().sqrt().item()) if is_rate_relative else 1
    u = rate * u / max(1.0, u.square().mean().sqrt().item())
    if beta1 is not None:
        state["exp_avg"] = u = beta1 * state.get("exp_avg", 0) + (1 - beta1) * u
    return p - rate * DECAY * p - u


def came(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of CAME: algorithm 2, with the authors' constants."""

    def inverse_root(key: str, x: Tensor, beta: float) -> Tensor:
        """Average the rows and columns of x; return the inverse root of their product."""
        for side, axis in (("row", -1), ("col", -2)):
            mean = x.mean(axis, keepdim=True)
            state[key + side] = beta * state.get(key + side, 0) + (1 - beta) * mean
        row, col = state[key + "row"], state[key + "col"]
        return (row / row.mean(-2, keepdim=True)).rsqrt() * col.rsqrt()

    u = g * inverse_root("exp_avg_sq_", g * g + 1e-30, 0.999)
    u = u / max(1.0, u.square().mean().sqrt().item())
    state["exp_avg"] = m = 0.9 * state.get("exp_avg", 0) + 0.1 * u
    return p - LR * DECAY * p - LR * m * inverse_root("exp_avg_res_", (u - m) ** 2 + 1e-16, 0.9999)


def row_wise_adagrad(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of row-wise Adagrad, with the library's weight decay and rate decay."""
    state["t"] = t = state.get("t", 0) + 1
    g = g + DECAY * p
    state["sum"] = state.get("sum", 0.2) + g.square().mean(1, keepdim=True)
    return p - LR / (1 + (t - 1) * 0.1) * g / (state["sum"].sqrt() + 1e-10)


ADAGRAD_OPTIONS = {"lr_decay": 0.1, "initial_accumulator_value": 0.2}
CASES = (
    Case("adafactor_hf", by_parameter(adafactor), {"weight_decay": DECAY}),
    Case(
        "adafactor_hf",
        by_parameter(adafactor_with_momentum),
        LR_AND_DECAY | {"beta1": 0.9, "scale_parameter": False},
        label="with momentum",
    ),
    Case("came", by_parameter(came), LR_AND_DECAY, shapes=MATRICES),
    Case(
        "row_wise_adagrad",
        by_parameter(row_wise_adagrad),
        LR_AND_DECAY | ADAGRAD_OPTIONS,
        shapes=MATRICES,
    ),
)

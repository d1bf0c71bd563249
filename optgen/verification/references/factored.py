"""Steps of rules with row and column states, each written from its paper or from code."""

from __future__ import annotations

import math

from torch import Tensor

from optgen.verification.case import MATRICES, Case
from optgen.verification.reference import Values, alone
from optgen.verification.references.moments import BOTH, DECAY, LR


def adafactor(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Adafactor: algorithms 4 and 5, with relative steps."""
    return factored_step(p, g, own, None, min(1e-2, 1 / math.sqrt(own.get("t", 0) + 1)), True)


def adafactor_with_momentum(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Adafactor with a fixed rate and with momentum, as in the library."""
    return factored_step(p, g, own, 0.9, LR, False)


def factored_step(
    p: Tensor, g: Tensor, own: Values, beta1: float | None, rate: float, scaled: bool
) -> Tensor:
    """Take a step of Adafactor; if `scaled`, the rate is relative to the parameter's size."""
    own["t"] = t = own.get("t", 0) + 1
    beta2, square = 1 - t**-0.8, g * g + 1e-30
    if p.dim() > 1:
        for key, axis in (("exp_avg_sq_row", -1), ("exp_avg_sq_col", -2)):
            own[key] = beta2 * own.get(key, 0) + (1 - beta2) * square.mean(axis, keepdim=True)
        row, col = own["exp_avg_sq_row"], own["exp_avg_sq_col"]
        estimate = row / row.mean(-2, keepdim=True) * col
    else:
        own["exp_avg_sq"] = beta2 * own.get("exp_avg_sq", 0) + (1 - beta2) * square
        estimate = own["exp_avg_sq"]
    u = g * estimate.rsqrt()
    rate *= max(1e-3, p.square().mean().sqrt().item()) if scaled else 1
    u = rate * u / max(1.0, u.square().mean().sqrt().item())
    if beta1 is not None:
        own["exp_avg"] = u = beta1 * own.get("exp_avg", 0) + (1 - beta1) * u
    return p - rate * DECAY * p - u


def came(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of CAME: algorithm 2, with the authors' constants."""

    def inverse_root(key: str, x: Tensor, beta: float) -> Tensor:
        """Average the rows and columns of x; return the inverse root of their product."""
        for side, axis in (("row", -1), ("col", -2)):
            mean = x.mean(axis, keepdim=True)
            own[key + side] = beta * own.get(key + side, 0) + (1 - beta) * mean
        row, col = own[key + "row"], own[key + "col"]
        return (row / row.mean(-2, keepdim=True)).rsqrt() * col.rsqrt()

    u = g * inverse_root("exp_avg_sq_", g * g + 1e-30, 0.999)
    u = u / max(1.0, u.square().mean().sqrt().item())
    own["exp_avg"] = m = 0.9 * own.get("exp_avg", 0) + 0.1 * u
    return p - LR * DECAY * p - LR * m * inverse_root("exp_avg_res_", (u - m) ** 2 + 1e-16, 0.9999)


def row_wise_adagrad(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of row-wise Adagrad, with the library's weight decay and rate decay."""
    own["t"] = t = own.get("t", 0) + 1
    g = g + DECAY * p
    own["sum"] = own.get("sum", 0.2) + g.square().mean(1, keepdim=True)
    return p - LR / (1 + (t - 1) * 0.1) * g / (own["sum"].sqrt() + 1e-10)


DECAYING = {"lr_decay": 0.1, "initial_accumulator_value": 0.2}
CASES = (
    Case("adafactor_hf", alone(adafactor), {"weight_decay": DECAY}),
    Case(
        "adafactor_hf",
        alone(adafactor_with_momentum),
        BOTH | {"beta1": 0.9, "scale_parameter": False},
        label="with momentum",
    ),
    Case("came", alone(came), BOTH, shapes=MATRICES),
    Case("row_wise_adagrad", alone(row_wise_adagrad), BOTH | DECAYING, shapes=MATRICES),
)

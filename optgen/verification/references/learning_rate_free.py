"""Steps of learning-rate-free rules, which reduce over all parameters; each written from its paper.

In `state`, a state that every parameter has is a list with an entry for each parameter.
"""

from __future__ import annotations

import math

from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import State, over_all_parameters


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
CASES = (
    Case("prodigy", over_all_parameters(prodigy), OPTIONS | {"use_bias_correction": True}),
    Case("dadapt_adam", over_all_parameters(dadapt_adam), OPTIONS | {"decouple": True}),
)

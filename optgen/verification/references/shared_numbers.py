"""Steps of rules that reduce over all parameters, each written from its paper.

A state of the parameters is a list in `own`, with an entry for each.
"""

from __future__ import annotations

import math

from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import Values, together


def prodigy(params: list[Tensor], grads: list[Tensor], own: Values) -> list[Tensor]:
    """Take a step of Prodigy, on which the paper and the code agree."""
    beta1, beta2, beta3, d0 = 0.9, 0.99, math.sqrt(0.99), 1e-3
    starts = own.setdefault("p0", params)
    own["k"] = k = own.get("k", 0) + 1
    d = own.get("d", d0)
    rate = d * 1.0 * math.sqrt(1 - beta2**k) / (1 - beta1**k)
    ms, vs, ss = (own.get(name, [0] * len(params)) for name in ("exp_avg", "exp_avg_sq", "s"))
    inner = sum((g * (x - p)).sum().item() for g, x, p in zip(grads, starts, params, strict=True))
    own["d_numerator"] = beta3 * own.get("d_numerator", 0) + d / d0 * rate * inner
    own["exp_avg"] = [0.9 * m + 0.1 * d * g for m, g in zip(ms, grads, strict=True)]
    own["exp_avg_sq"] = [0.99 * v + 0.01 * d**2 * g**2 for v, g in zip(vs, grads, strict=True)]
    own["s"] = [beta3 * s + d / d0 * rate * g for s, g in zip(ss, grads, strict=True)]
    d_hat = own["d_numerator"] / sum(s.abs().sum().item() for s in own["s"])
    own["d_max"] = max(own.get("d_max", d0), d_hat)
    own["d"] = min(own["d_max"], (max(d, d_hat) if d == d0 else d) * 1.5)
    return [
        p * (1 - 0.1 * rate) - rate * m / (v.sqrt() + own["d"] * 1e-8)
        for p, m, v in zip(params, own["exp_avg"], own["exp_avg_sq"], strict=True)
    ]


def dadapt_adam(params: list[Tensor], grads: list[Tensor], own: Values) -> list[Tensor]:
    """Take a step of D-Adapt Adam, on which the paper and the code agree."""
    root, d = math.sqrt(0.99), own.get("d", 1e-3)
    own["k"] = own.get("k", 0) + 1
    zeros = [g * 0 for g in grads]
    ms, vs, ss = (own.get(name, zeros) for name in ("exp_avg", "exp_avg_sq", "s"))
    inner = sum(
        (g * s / (v.sqrt() + 1e-8)).sum().item() for g, s, v in zip(grads, ss, vs, strict=True)
    )
    before = own.get("numerator_weighted", 0)
    own["numerator_weighted"] = root * before + (1 - root) * d * inner
    own["exp_avg"] = [0.9 * m + 0.1 * d * g for m, g in zip(ms, grads, strict=True)]
    own["exp_avg_sq"] = [0.99 * v + 0.01 * g**2 for v, g in zip(vs, grads, strict=True)]
    own["s"] = [root * s + (1 - root) * d * g for s, g in zip(ss, grads, strict=True)]
    length = sum(s.abs().sum().item() for s in own["s"])
    own["d"] = max(d, min(own["numerator_weighted"] / ((1 - root) * length), d * 1.5))
    return [
        p * (1 - 0.1 * d) - m / (v.sqrt() + 1e-8)
        for p, m, v in zip(params, own["exp_avg"], own["exp_avg_sq"], strict=True)
    ]


OPTIONS = {"betas": (0.9, 0.99), "weight_decay": 0.1, "d0": 1e-3, "growth_rate": 1.5}
CASES = (
    Case("prodigy", together(prodigy), OPTIONS | {"use_bias_correction": True}),
    Case("dadapt_adam", together(dadapt_adam), OPTIONS | {"decouple": True}),
)

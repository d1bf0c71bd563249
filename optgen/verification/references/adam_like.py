"""Steps of rules like Adam, each written from its paper or from code."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import State, by_parameter
from optgen.verification.references.moments import (
    DECAY,
    LR,
    LR_AND_DECAY,
    ONLY_LR,
    interpolated_decay,
    moments,
    radam_factor,
)


def ademamix(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdEMAMix; as in the authors' code, beta3 and alpha grow for 20 steps."""
    state["t"] = t = state.get("t", 0) + 1
    warming_up = t < 20
    beta3, alpha = (
        (interpolated_decay(0.9, 0.9999, t / 20), 5 * t / 20) if warming_up else (0.9999, 5)
    )
    state["exp_avg_fast"] = 0.9 * state.get("exp_avg_fast", 0) + 0.1 * g
    state["exp_avg_slow"] = beta3 * state.get("exp_avg_slow", 0) + (1 - beta3) * g
    state["exp_avg_sq"] = 0.999 * state.get("exp_avg_sq", 0) + 0.001 * g * g
    mixed = state["exp_avg_fast"] / (1 - 0.9**t) + alpha * state["exp_avg_slow"]
    root = state["exp_avg_sq"].sqrt() / math.sqrt(1 - 0.999**t) + 1e-8
    return p - LR * (mixed / root + DECAY * p)


def simplified_ademamix(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Simplified AdEMAMix."""
    state["t"] = t = state.get("t", 0) + 1
    beta1 = interpolated_decay(0.9, 0.99, t / 20) if t < 20 else 0.99
    state["exp_avg"] = beta1 * state.get("exp_avg", 0) + g
    state["exp_avg_sq"] = 0.95 * state.get("exp_avg_sq", 0) + 0.05 * g * g
    weight = math.sqrt(1 - 0.95**t)
    update = (3 * g + state["exp_avg"]) / (state["exp_avg_sq"].sqrt() + 1e-8 * weight) * weight
    return p - LR * (update + DECAY * p)


def adopt(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of ADOPT: algorithm 2, with decoupled decay."""
    state["t"] = t = state.get("t", -1) + 1
    if t == 0:
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), g * g
        return p
    normed = g / state["exp_avg_sq"].sqrt().clamp(min=1e-6)
    state["exp_avg"] = 0.9 * state["exp_avg"] + 0.1 * normed.clamp(-(t**0.25), t**0.25)
    state["exp_avg_sq"] = 0.9999 * state["exp_avg_sq"] + 0.0001 * g * g
    return p * (1 - LR * DECAY) - LR * state["exp_avg"]


def mars(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of MARS; vectors take a step of AdamW with other hyperparameters."""
    last_grad, state["last_grad"] = state.get("last_grad", torch.zeros_like(p)), g
    if p.dim() != 2:
        m, v = moments(g, state, (0.9, 0.95))
        return p - LR * (0.2 * p + m / (v.sqrt() + 1e-8))
    c = g + 0.025 * (0.95 / 0.05) * (g - last_grad)
    m, v = moments(c / max(c.norm().item(), 1), state, (0.95, 0.99))
    return p - LR * (DECAY * p + m / (v.sqrt() + 1e-8))


def stable_adamw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of StableAdamW: algorithm 2, with the library's constants."""
    state["t"] = t = state.get("t", 0) + 1
    b1, b2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (0.9, 0.99))
    state["exp_avg"] = b1 * state.get("exp_avg", 0) + (1 - b1) * g
    state["exp_avg_sq"] = v = b2 * state.get("exp_avg_sq", 0) + (1 - b2) * g * g
    rate = LR / max(1.0, (g * g / v.clamp(min=1e-12)).mean().sqrt().item())
    return p * (1 - rate * DECAY) - rate * state["exp_avg"] / (v.sqrt() + 1e-6)


def adamc(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamC: algorithm 1, where LR is a fifth of the largest rate, 0.05."""
    m, v = moments(g, state, (0.9, 0.999))
    return p - LR**2 / 0.05 * DECAY * p - LR * m / (v.sqrt() + 1e-8)


def adabelief(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaBelief, rectified as in its authors' package."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg"] = m = 0.9 * state.get("exp_avg", 0) + 0.1 * g
    state["exp_avg_var"] = 0.99 * state.get("exp_avg_var", 0) + 0.01 * (g - m) ** 2 + 1e-16
    p, rate = p * (1 - LR * DECAY), LR / (1 - 0.9**t)
    factor = radam_factor(t, 0.99, 5)
    if factor is None:
        return p - rate * m
    root = state["exp_avg_var"].sqrt() + 1e-16
    return p - rate * factor * math.sqrt(1 - 0.99**t) * m / root


def plain_adabelief(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaBelief: algorithm 2."""
    state["t"] = t = state.get("t", 0) + 1
    state["exp_avg"] = m = 0.9 * state.get("exp_avg", 0) + 0.1 * g
    state["exp_avg_var"] = 0.999 * state.get("exp_avg_var", 0) + 0.001 * (g - m) ** 2 + 1e-8
    root = (state["exp_avg_var"] / (1 - 0.999**t)).sqrt() + 1e-8
    return p - LR * m / (1 - 0.9**t) / root


def yogi(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Yogi: algorithm 2, with Adam's corrections."""
    state["t"] = t = state.get("t", 0) + 1
    g = g + DECAY * p
    start = torch.full_like(p, 1e-6)
    state["exp_avg"] = 0.9 * state.get("exp_avg", start) + 0.1 * g
    v = state.get("exp_avg_sq", start)
    state["exp_avg_sq"] = v - 0.001 * torch.sign(v - g * g) * g * g
    root = state["exp_avg_sq"].sqrt() / math.sqrt(1 - 0.999**t) + 1e-3
    return p - LR / (1 - 0.9**t) * state["exp_avg"] / root


def grams(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Grams: algorithm 1, with AdamW's decay."""
    m, v = moments(g, state, (0.9, 0.999))
    return p * (1 - LR * DECAY) - LR * g.sign() * (m / (v.sqrt() + 1e-6)).abs()


def lamb(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of LAMB: algorithm 2, with Adam's corrections."""
    m, v = moments(g, state, (0.9, 0.999))
    u = m / (v.sqrt() + 1e-6) + DECAY * p
    return p - LR * p.norm() / u.norm() * u


def kahan_adamw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamW. In float64 nothing is compensated, so the compensation stays zero."""
    m, v = moments(g, state, (0.9, 0.999))
    state["compensation"] = torch.zeros_like(p)
    return p - LR * (m / (v.sqrt() + 1e-8) + DECAY * p)


def adam_mini(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adam-mini. Vectors have a second moment by element, matrices by row."""
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    key, square = ("v", g.square()) if p.dim() < 2 else ("r", g.square().mean(-1, keepdim=True))
    state[key] = 0.999 * state.get(key, 0) + 0.001 * square
    root = (state[key] / (1 - 0.999**t)).sqrt() + 1e-8
    return p * (1 - LR * DECAY) - LR * state["m"] / (1 - 0.9**t) / root


def adam_h(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamH."""
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.95 * state.get("v", 0) + 0.05 * g.square()
    u = state["m"] / (1 - 0.9**t) / ((state["v"] / (1 - 0.95**t)).sqrt() + 1e-8)
    moved = p - LR * u * (p.norm() / u.norm())
    return moved * (p.norm() / moved.norm())


WARMUP = {"beta3_warmup": 20, "alpha_warmup": 20}
CASES = (
    Case("ademamix", by_parameter(ademamix), LR_AND_DECAY | WARMUP | {"alpha": 5}),
    Case(
        "simplified_ademamix",
        by_parameter(simplified_ademamix),
        LR_AND_DECAY | {"alpha": 3, "beta1_warmup": 20},
    ),
    Case("adopt", by_parameter(adopt), LR_AND_DECAY | {"decouple": True}),
    Case("mars", by_parameter(mars), LR_AND_DECAY | {"weight_decay_1d": 0.2}),
    Case("stable_adamw", by_parameter(stable_adamw), LR_AND_DECAY),
    Case("adamc", by_parameter(adamc), LR_AND_DECAY | {"max_lr": 0.05}),
    Case("adabelief", by_parameter(adabelief), LR_AND_DECAY | {"betas": (0.9, 0.99)}),
    Case(
        "adabelief",
        by_parameter(plain_adabelief),
        ONLY_LR | {"rectify": False, "eps": 1e-8},
        label="not rectified",
    ),
    Case("yogi", by_parameter(yogi), LR_AND_DECAY),
    Case("grams", by_parameter(grams), LR_AND_DECAY),
    Case("lamb", by_parameter(lamb), LR_AND_DECAY),
    Case("kahan_adamw", by_parameter(kahan_adamw), LR_AND_DECAY),
    Case("adam_mini", by_parameter(adam_mini), LR_AND_DECAY),
    Case("adam_h", by_parameter(adam_h), ONLY_LR),
)

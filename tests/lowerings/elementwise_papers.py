"""Steps of published optimizers without matrix words, each written from its paper or from code.

They keep values for the next step under the keys of a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Own = dict[str, Any]
LR, DECAY = 0.01, 0.1


def moments(
    g: Tensor, own: Own, betas: tuple[float, float], square: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Count the step, and return both moments of Adam without bias."""
    own["t"] = t = own.get("t", 0) + 1
    own["exp_avg"] = betas[0] * own.get("exp_avg", 0) + (1 - betas[0]) * g
    square = g.square() if square is None else square
    own["exp_avg_sq"] = betas[1] * own.get("exp_avg_sq", 0) + (1 - betas[1]) * square
    return own["exp_avg"] / (1 - betas[0] ** t), own["exp_avg_sq"] / (1 - betas[1] ** t)


def lion(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Lion: arXiv 2302.06675, algorithm 2."""
    old = own.get("exp_avg", torch.zeros_like(p))
    own["exp_avg"] = 0.99 * old + 0.01 * g
    return p - LR * (torch.sign(0.9 * old + 0.1 * g) + DECAY * p)


def signum(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Signum: arXiv 1802.04434, algorithm 2, with decoupled decay."""
    own["momentum_buffer"] = 0.9 * own.get("momentum_buffer", 0) + 0.1 * g
    return p * (1 - LR * DECAY) - LR * own["momentum_buffer"].sign()


def tiger(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Tiger as the README of bojone/tiger has it."""
    own["exp_avg"] = 0.965 * own.get("exp_avg", 0) + 0.035 * g
    return p - LR * (own["exp_avg"].sign() + DECAY * p)


def half_life(beta: float) -> float:
    return math.log(0.5) / math.log(beta + 1e-8) - 1


def between(start: float, end: float, share: float) -> float:
    """Return a decay whose half-life lies between those of two others."""
    return 0.5 ** (1 / ((1 - share) * half_life(start) + share * half_life(end) + 1))


def ademamix(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of AdEMAMix: arXiv 2409.03137, with apple/ml-ademamix's warmups of 20 steps."""
    own["t"] = t = own.get("t", 0) + 1
    warm = t < 20
    beta3, alpha = (between(0.9, 0.9999, t / 20), 5 * t / 20) if warm else (0.9999, 5)
    own["exp_avg_fast"] = 0.9 * own.get("exp_avg_fast", 0) + 0.1 * g
    own["exp_avg_slow"] = beta3 * own.get("exp_avg_slow", 0) + (1 - beta3) * g
    own["exp_avg_sq"] = 0.999 * own.get("exp_avg_sq", 0) + 0.001 * g * g
    mixed = own["exp_avg_fast"] / (1 - 0.9**t) + alpha * own["exp_avg_slow"]
    root = own["exp_avg_sq"].sqrt() / math.sqrt(1 - 0.999**t) + 1e-8
    return p - LR * (mixed / root + DECAY * p)


def simplified_ademamix(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Simplified AdEMAMix as DepenM/Simplified-AdEMAMix has it."""
    own["t"] = t = own.get("t", 0) + 1
    beta1 = between(0.9, 0.99, t / 20) if t < 20 else 0.99
    own["exp_avg"] = beta1 * own.get("exp_avg", 0) + g
    own["exp_avg_sq"] = 0.95 * own.get("exp_avg_sq", 0) + 0.05 * g * g
    weight = math.sqrt(1 - 0.95**t)
    update = (3 * g + own["exp_avg"]) / (own["exp_avg_sq"].sqrt() + 1e-8 * weight) * weight
    return p - LR * (update + DECAY * p)


def adopt(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of ADOPT: arXiv 2411.02853, algorithm 2 with decoupled decay."""
    own["t"] = t = own.get("t", -1) + 1
    if t == 0:
        own["exp_avg"], own["exp_avg_sq"] = torch.zeros_like(p), g * g
        return p
    normed = g / own["exp_avg_sq"].sqrt().clamp(min=1e-6)
    own["exp_avg"] = 0.9 * own["exp_avg"] + 0.1 * normed.clamp(-(t**0.25), t**0.25)
    own["exp_avg_sq"] = 0.9999 * own["exp_avg_sq"] + 0.0001 * g * g
    return p * (1 - LR * DECAY) - LR * own["exp_avg"]


def mars(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of MARS as AGI-Arena/MARS has it; vectors take AdamW with other numbers."""
    last, own["last_grad"] = own.get("last_grad", torch.zeros_like(p)), g
    if p.dim() != 2:
        m, v = moments(g, own, (0.9, 0.95))
        return p - LR * (0.2 * p + m / (v.sqrt() + 1e-8))
    c = g + 0.025 * (0.95 / 0.05) * (g - last)
    m, v = moments(c / max(c.norm().item(), 1), own, (0.95, 0.99))
    return p - LR * (DECAY * p + m / (v.sqrt() + 1e-8))


def stable_adamw(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of StableAdamW: arXiv 2304.13013, algorithm 2, with torch-optimi's numbers."""
    own["t"] = t = own.get("t", 0) + 1
    b1, b2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (0.9, 0.99))
    own["exp_avg"] = b1 * own.get("exp_avg", 0) + (1 - b1) * g
    own["exp_avg_sq"] = v = b2 * own.get("exp_avg_sq", 0) + (1 - b2) * g * g
    rate = LR / max(1.0, (g * g / v.clamp(min=1e-12)).mean().sqrt().item())
    return p * (1 - rate * DECAY) - rate * own["exp_avg"] / (v.sqrt() + 1e-6)


def adamc(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of AdamC: arXiv 2506.02285, algorithm 1, at a fifth of the largest rate."""
    m, v = moments(g, own, (0.9, 0.999))
    return p - LR**2 / 0.05 * DECAY * p - LR * m / (v.sqrt() + 1e-8)


def rectified(t: int, beta2: float, least: float) -> float | None:
    """Return RAdam's factor after some steps; None while the variance is unknown."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    if length < least:
        return None
    above = (length - 4) / (longest - 4) * (length - 2) / (longest - 2)
    return math.sqrt(above * longest / length)


def adabelief(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of AdaBelief: arXiv 2010.07468, rectified as in its authors' package."""
    own["t"] = t = own.get("t", 0) + 1
    own["exp_avg"] = m = 0.9 * own.get("exp_avg", 0) + 0.1 * g
    own["exp_avg_var"] = 0.99 * own.get("exp_avg_var", 0) + 0.01 * (g - m) ** 2 + 1e-16
    p, rate = p * (1 - LR * DECAY), LR / (1 - 0.9**t)
    factor = rectified(t, 0.99, 5)
    if factor is None:
        return p - rate * m
    root = own["exp_avg_var"].sqrt() + 1e-16
    return p - rate * factor * math.sqrt(1 - 0.99**t) * m / root


def plain_adabelief(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of AdaBelief: arXiv 2010.07468, algorithm 2."""
    own["t"] = t = own.get("t", 0) + 1
    own["exp_avg"] = m = 0.9 * own.get("exp_avg", 0) + 0.1 * g
    own["exp_avg_var"] = 0.999 * own.get("exp_avg_var", 0) + 0.001 * (g - m) ** 2 + 1e-8
    root = (own["exp_avg_var"] / (1 - 0.999**t)).sqrt() + 1e-8
    return p - LR * m / (1 - 0.9**t) / root


def yogi(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Yogi: Zaheer et al. (2018), algorithm 2, with Adam's corrections."""
    own["t"] = t = own.get("t", 0) + 1
    g = g + DECAY * p
    start = torch.full_like(p, 1e-6)
    own["exp_avg"] = 0.9 * own.get("exp_avg", start) + 0.1 * g
    v = own.get("exp_avg_sq", start)
    own["exp_avg_sq"] = v - 0.001 * torch.sign(v - g * g) * g * g
    root = own["exp_avg_sq"].sqrt() / math.sqrt(1 - 0.999**t) + 1e-3
    return p - LR / (1 - 0.9**t) * own["exp_avg"] / root


def sgdw(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of SGDW: arXiv 1711.05101, algorithm 1, with timm's Nesterov momentum."""
    old = own.get("momentum_buffer")
    own["momentum_buffer"] = g if old is None else 0.9 * old + g
    return p * (1 - LR * DECAY) - LR * (g + 0.9 * own["momentum_buffer"])


def rmsprop_tf(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of RMSprop with momentum as TensorFlow and timm have it."""
    g = g + DECAY * p
    v = own.get("square_avg", torch.ones_like(p))
    own["square_avg"] = v + 0.1 * (g * g - v)
    rate = LR / (own["square_avg"] + 1e-10).sqrt()
    own["momentum_buffer"] = 0.9 * own.get("momentum_buffer", 0) + rate * g
    return p - own["momentum_buffer"]


def grams(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Grams: arXiv 2412.17107, algorithm 1, with AdamW's decay."""
    m, v = moments(g, own, (0.9, 0.999))
    return p * (1 - LR * DECAY) - LR * g.sign() * (m / (v.sqrt() + 1e-6)).abs()


def adafactor(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Adafactor: arXiv 1804.04235, algorithms 4 and 5, with relative steps."""
    return factored_step(p, g, own, None, min(1e-2, 1 / math.sqrt(own.get("t", 0) + 1)), True)


def adafactor_with_momentum(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Adafactor with a rate and momentum, as transformers has it."""
    return factored_step(p, g, own, 0.9, LR, False)


def factored_step(
    p: Tensor, g: Tensor, own: Own, beta1: float | None, rate: float, scaled: bool
) -> Tensor:
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


def schedule_free_radam(y: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Schedule-Free RAdam: arXiv 2405.15682, as its authors' package has it."""
    own["t"] = t = own.get("t", 0) + 1
    x, z = own.get("x", y), own.get("z", y)
    own["exp_avg_sq"] = 0.99 * own.get("exp_avg_sq", 0) + 0.01 * g * g
    factor = rectified(t, 0.99, 4)
    if factor is None:
        rate = 0.0
    else:
        rate = LR * factor
        g = g / ((own["exp_avg_sq"] / (1 - 0.99**t)).sqrt() + 1e-8)
    own["lr_max"] = max(own.get("lr_max", 0.0), rate)
    weight = own["lr_max"] ** 2
    own["weight_sum"] = own.get("weight_sum", 0.0) + weight
    share = weight / own["weight_sum"] if weight else 0.0
    own["z"] = z - rate * (g + DECAY * y)
    own["x"] = (1 - share) * x + share * own["z"]
    return 0.9 * own["x"] + 0.1 * own["z"]


def lamb(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of LAMB: arXiv 1904.00962, algorithm 2, with Adam's corrections."""
    m, v = moments(g, own, (0.9, 0.999))
    u = m / (v.sqrt() + 1e-6) + DECAY * p
    return p - LR * p.norm() / u.norm() * u


def lars(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of LARS: arXiv 1708.03888, algorithm 1, with timm's order of rate and sum."""
    rate = 1e-3 * p.norm() / (g.norm() + DECAY * p.norm() + 1e-8)
    u = rate * (g + DECAY * p)
    own["momentum_buffer"] = 0.9 * own.get("momentum_buffer", 0) + u
    return p - own["momentum_buffer"]


def kahan_adamw(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of AdamW, in whose dtype nothing is lost: the compensation stays at zero."""
    m, v = moments(g, own, (0.9, 0.999))
    own["compensation"] = torch.zeros_like(p)
    return p - LR * (m / (v.sqrt() + 1e-8) + DECAY * p)


PLAIN = {"lr": LR}
BOTH = {**PLAIN, "weight_decay": DECAY}
ELEMENTWISE: dict[str, tuple[str, Callable[[Tensor, Tensor, Own], Tensor], dict[str, Any]]] = {
    "lion": ("lion", lion, BOTH),
    "signum": ("signum", signum, BOTH),
    "tiger": ("tiger", tiger, BOTH),
    "ademamix": ("ademamix", ademamix, BOTH | {"alpha": 5, "beta3_warmup": 20, "alpha_warmup": 20}),
    "simplified_ademamix": (
        "simplified_ademamix",
        simplified_ademamix,
        BOTH | {"alpha": 3, "beta1_warmup": 20},
    ),
    "adopt": ("adopt", adopt, BOTH | {"decouple": True}),
    "mars": ("mars", mars, BOTH | {"weight_decay_1d": 0.2}),
    "stable_adamw": ("stable_adamw", stable_adamw, BOTH),
    "adamc": ("adamc", adamc, BOTH | {"max_lr": 0.05}),
    "adabelief": ("adabelief", adabelief, BOTH | {"betas": (0.9, 0.99)}),
    "adabelief, not rectified": (
        "adabelief",
        plain_adabelief,
        PLAIN | {"rectify": False, "eps": 1e-8},
    ),
    "yogi": ("yogi", yogi, BOTH),
    "sgdw": ("sgdw", sgdw, BOTH | {"momentum": 0.9, "nesterov": True}),
    "rmsprop_tf": ("rmsprop_tf", rmsprop_tf, BOTH | {"momentum": 0.9}),
    "grams": ("grams", grams, BOTH),
    "adafactor_hf": ("adafactor_hf", adafactor, {"weight_decay": DECAY}),
    "adafactor_hf, momentum": (
        "adafactor_hf",
        adafactor_with_momentum,
        BOTH | {"beta1": 0.9, "scale_parameter": False},
    ),
    "lamb": ("lamb", lamb, BOTH),
    "lars": ("lars", lars, {"weight_decay": DECAY, "momentum": 0.9}),
    "kahan_adamw": ("kahan_adamw", kahan_adamw, BOTH),
    "schedule_free_radam": (
        "schedule_free_radam",
        schedule_free_radam,
        BOTH | {"betas": (0.9, 0.99)},
    ),
}
"""Rules of the catalogue, their steps, and the options of the class that these correspond to."""

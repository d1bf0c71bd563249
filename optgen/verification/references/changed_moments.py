"""Steps of rules that change a moment of Adam, its rate or the gradient, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.verification.case import Case, State, by_parameter, over_all_parameters
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY, ONLY_LR, moments

FLAT_SHAPES = ((5,), (4, 3), (), (2, 7))
"""Shapes of vectors and matrices."""


def adan(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adan: algorithm 1, whose betas are one minus the library's."""
    b1, b2, b3 = 0.02, 0.08, 0.01
    t, diff = state["step"], g - state.get("old", g)
    state["old"] = g
    state["m"] = (1 - b1) * state.get("m", 0) + b1 * g
    state["v"] = (1 - b2) * state.get("v", 0) + b2 * diff
    state["n"] = (1 - b3) * state.get("n", 0) + b3 * (g + (1 - b2) * diff).square()
    eta = LR / ((state["n"] / (1 - (1 - b3) ** t)).sqrt() + 1e-8)
    m, v = state["m"] / (1 - (1 - b1) ** t), state["v"] / (1 - (1 - b2) ** t)
    return (p - eta * (m + (1 - b2) * v)) / (1 + LR * DECAY)


def adan_without_prox(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adan with AdamW's decay, which the authors' `no_prox` has."""
    return adan(p, g, state) * (1 + LR * DECAY) - LR * DECAY * p


def adabound(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaBound: algorithm 2, with Adam's corrections."""
    m, v = moments(g + DECAY * p, state, (0.9, 0.999))
    grown = 0.1 * state["t"]
    low, high = 0.05 - 0.05 / (grown + 1), 0.05 + 0.05 / grown
    weight = math.sqrt(1 - 0.999 ** state["t"])
    rate = LR / (v.sqrt() + 1e-8 / weight) / (1 - 0.9 ** state["t"])
    return p - rate.clamp(low, high) * m * (1 - 0.9 ** state["t"])


def adamod(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaMod: algorithm 1, where the rate has both of Adam's corrections."""
    m, v = moments(g, state, (0.9, 0.99))
    root, t = math.sqrt(1 - 0.99 ** state["t"]), state["t"]
    rate = LR / (v.sqrt() * root + 1e-8) * root / (1 - 0.9**t)
    state["s"] = 0.95 * state.get("s", 0) + 0.05 * rate
    return p * (1 - LR * DECAY) - torch.min(rate, state["s"]) * m * (1 - 0.9**t)


def padam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Padam: algorithm 1, with the authors' eps and corrections."""
    moments(g + DECAY * p, state, (0.9, 0.99))
    old, t = state.get("largest", torch.zeros_like(p)), state["t"]
    state["largest"] = torch.max(old, state["exp_avg_sq"])
    rate = LR * math.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    return p - rate * state["exp_avg"] / (state["largest"].sqrt() + 1e-8) ** 0.5


def diffgrad(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of diffGrad: equations 6 to 9."""
    g = g + DECAY * p
    m, v = moments(g, state, (0.9, 0.999))
    friction = torch.sigmoid((state.get("old", torch.zeros_like(p)) - g).abs())
    state["old"] = g
    eps = 1e-8 / math.sqrt(1 - 0.999 ** state["t"])
    return p - LR * friction * m / (v.sqrt() + eps)


def qhadam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of QHAdam: equations of section 3.2."""
    m, v = moments(g + DECAY * p, state, (0.9, 0.999))
    g = g + DECAY * p
    return p - LR * (0.3 * g + 0.7 * m) / ((0.1 * g * g + 0.9 * v).sqrt() + 1e-8)


def adanorm(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Adam with AdaNorm: algorithm 2."""
    size = g.norm().item()
    state["e"] = 0.95 * state.get("e", 0) + 0.05 * size
    longer = g * (state["e"] / size) if state["e"] > size else g
    m, v = moments(longer, state, (0.9, 0.99), g.square())
    return p * (1 - LR * DECAY) - LR * m / (v.sqrt() + 1e-8)


def laprop(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of LaProp: algorithm 1, with decay after the step as in the authors' code."""
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
    normed = g / ((state["v"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-15)
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * normed
    return (p - LR * state["m"] / (1 - 0.9 ** state["step"])) * (1 - LR * DECAY)


def nadamw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamW whose numerator is the momentum of one more step with this gradient."""
    m, v = moments(g, state, (0.9, 0.999))
    ahead = 0.9 * m + 0.1 * g / (1 - 0.9 ** state["t"])
    return p * (1 - LR * DECAY) - LR * ahead / (v.sqrt() + 1e-8)


def avagrad(params: list[Tensor], gradients: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of AvaGrad: algorithm 2, whose gamma is the step's before, with decay."""
    state["t"] = t = state.get("t", 0) + 1
    states = state.setdefault("states", [{} for _ in params])
    moved, squares, count = [], 0.0, 0
    for p, g, own in zip(params, gradients, states, strict=True):
        p = p * (1 - LR * DECAY)
        own["m"] = 0.9 * own.get("m", 0) + 0.1 * g
        if t > 1:
            root = (own["v"] / (1 - 0.999 ** (t - 1))).sqrt() + 0.1
            p = p - LR * state["gamma"] * own["m"] / (1 - 0.9**t) / root
        own["v"] = 0.999 * own.get("v", 0) + 0.001 * g * g
        eta = 1 / ((own["v"] / (1 - 0.999**t)).sqrt() + 0.1)
        squares, count = squares + eta.square().sum().item(), count + eta.numel()
        moved.append(p)
    state["gamma"] = math.sqrt(count / squares)
    return moved


def madgrad(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of MADGRAD: algorithm 1, with the library's decay."""
    p = p * (1 - LR * DECAY)
    start = state.setdefault("x0", p if state["step"] > 1 else p / (1 - LR * DECAY))
    weight = (LR + 1e-6) * math.sqrt(state["step"])
    state["v"] = state.get("v", 0) + weight * g * g
    state["s"] = state.get("s", 0) + weight * g
    return 0.9 * p + 0.1 * (start - state["s"] / (state["v"].pow(1 / 3) + 1e-6))


def stable_spam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Stable-SPAM: algorithm 1, with a reset in every seventh step."""
    t = state["step"]
    state["k"] = k = 1 if t % 7 == 0 else state.get("k", 0) + 1
    if k == 1:
        state["m"] = state["v"] = torch.zeros_like(p)
    state["max"] = 0.999 * state.get("max", 0) + 0.001 * g.abs().max()
    limit = state["max"] / (1 - 0.999**t)
    g = torch.where(g.abs() > limit, g / g.abs().max() * limit, g)
    state["norm"] = 0.7 * state.get("norm", 0) + 0.3 * g.norm()
    state["norm_sq"] = 0.9 * state.get("norm_sq", 0) + 0.1 * g.norm() ** 2
    scale = state["norm"] / (1 - 0.7**t) / ((state["norm_sq"] / (1 - 0.9**t)).sqrt() + 1e-8)
    g = g / g.norm() * scale
    state["m"] = 0.9 * state["m"] + 0.1 * g
    state["v"] = 0.999 * state["v"] + 0.001 * g.square()
    root = (state["v"] / (1 - 0.999**k)).sqrt() + 1e-8
    return p * (1 - LR * DECAY) - LR * state["m"] / (1 - 0.9**k) / root


def amos(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Amos: algorithm 1, with the library's scales, and a momentum of 0.9."""
    t = state["step"]
    rate = LR * (math.sqrt(2 / p.size(1)) if p.dim() > 1 else 0.5)
    mean_square, decay = g.square().mean(), state.get("d", torch.tensor(0.0))
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * mean_square
    inverse = (1 - 0.999**t) / (state["v"] + 1e-18)
    gamma = LR**2 * inverse * mean_square / (1 + 0.25 * math.sqrt(LR) * decay).sqrt()
    update = rate * inverse.sqrt() * g + (gamma - 0.01) / 2 * p
    state["d"] = decay + gamma * decay + gamma
    update = update / (1 + 0.25 * math.sqrt(rate) * decay)
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * update
    return p - state["m"]


def rose(p: Tensor, g: Tensor, state: State, switches: tuple[bool, bool] = (True, True)) -> Tensor:
    """Take a step of Rose, as its author's code does."""
    centralize, stabilize = switches
    if p.numel() == 1:
        divisor = g.abs() + 1e-5
    elif p.dim() < 2 or p.size(1) == 1:
        divisor = g.max() - g.min() + 1
    else:
        divisor = g.amax(1, keepdim=True) - g.amin(1, keepdim=True)
        g = g - g.mean(1, keepdim=True) if centralize else g
        if stabilize:
            spread, mean = torch.std_mean(divisor, correction=0)
            divisor = mean + mean / (spread + mean) * (divisor - mean)
    return p * (1 - LR * DECAY) - LR * g / divisor


def plain_rose(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Rose with ranges of rows only, and gradients as they are."""
    return rose(p, g, state, (False, False))


RESET = LR_AND_DECAY | {"update_proj_gap": 7}
WITH_COLUMN = (*FLAT_SHAPES, (3, 1))
CASES = (
    Case("adan", by_parameter(adan), LR_AND_DECAY),
    Case(
        "adan",
        by_parameter(adan_without_prox),
        LR_AND_DECAY | {"no_prox": True},
        label="without the proximal step",
    ),
    Case("adabound", by_parameter(adabound), LR_AND_DECAY | {"final_lr": 0.05, "gamma": 0.1}),
    Case("adamod", by_parameter(adamod), LR_AND_DECAY | {"betas": (0.9, 0.99), "beta3": 0.95}),
    Case("padam", by_parameter(padam), LR_AND_DECAY | {"betas": (0.9, 0.99)}),
    Case("diffgrad", by_parameter(diffgrad), LR_AND_DECAY),
    Case("qhadam", by_parameter(qhadam), LR_AND_DECAY | {"nus": (0.7, 0.9)}),
    Case("adanorm", by_parameter(adanorm), LR_AND_DECAY),
    Case("laprop", by_parameter(laprop), LR_AND_DECAY),
    Case("nadamw", by_parameter(nadamw), LR_AND_DECAY),
    Case("avagrad", over_all_parameters(avagrad), LR_AND_DECAY),
    Case("madgrad", by_parameter(madgrad), LR_AND_DECAY | {"decoupled_decay": True}),
    Case("stable_spam", by_parameter(stable_spam), RESET, shapes=FLAT_SHAPES),
    Case(
        "amos",
        by_parameter(amos),
        ONLY_LR | {"momentum": 0.9, "extra_l2": 0.01},
        shapes=FLAT_SHAPES,
    ),
    Case("rose", by_parameter(rose), LR_AND_DECAY, shapes=WITH_COLUMN),
    Case(
        "rose",
        by_parameter(plain_rose),
        LR_AND_DECAY | {"centralize": False, "stabilize": False},
        label="without means",
        shapes=WITH_COLUMN,
    ),
)

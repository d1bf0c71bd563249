"""Steps of further descendants of Adam, AdaBelief and Adagrad, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.verification.case import Case, State, by_parameter, over_all_parameters
from optgen.verification.references.changed_moments import FLAT_SHAPES
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY, moments


def adai(params: list[Tensor], gradients: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of AdaiV2: algorithm 2 with dampening, and decay through the gradient."""
    state["t"] = t = state.get("t", 0) + 1
    states = state.setdefault("states", [{"product": 1.0} for _ in params])
    decayed = [g + DECAY * p for p, g in zip(params, gradients, strict=True)]
    for g, own in zip(decayed, states, strict=True):
        own["v"] = 0.99 * own.get("v", 0) + 0.01 * g * g
        own["v_hat"] = own["v"] / (1 - 0.99**t)
    mean = torch.cat([own["v_hat"].flatten() for own in states]).mean()
    moved = []
    for p, g, own in zip(params, decayed, states, strict=True):
        inertia = (1 - 0.1 * (own["v_hat"] / mean).sqrt()).clamp(0, 1 - 1e-3)
        own["product"] = own["product"] * inertia
        own["m"] = inertia * own.get("m", 0) + (1 - inertia).sqrt() * g
        moved.append(p - LR * math.sqrt(0.1) * own["m"] / (1 - own["product"]))
    return moved


def adams(params: list[Tensor], gradients: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of AdamS: algorithm 3."""
    states = state.setdefault("states", [{} for _ in params])
    pairs = [moments(g, own, (0.9, 0.999)) for g, own in zip(gradients, states, strict=True)]
    size = torch.cat([v.flatten() for _, v in pairs]).mean().sqrt() + 1e-8
    return [
        p * (1 - LR * DECAY / size) - LR * m / (v.sqrt() + 1e-8)
        for p, (m, v) in zip(params, pairs, strict=True)
    ]


def exadam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of EXAdam: algorithm 1, at a fixed rate."""
    m_hat, v_hat = moments(g, state, (0.9, 0.999))
    m, v, t = state["exp_avg"], state["exp_avg_sq"], state["t"]
    m_tilde = m_hat * (1 + v / (v + 1e-8) * 0.999**t)
    v_tilde = v_hat * (1 + m * m / (m * m + 1e-8) * 0.9**t)
    newest = g / (1 - 0.9**t) * (1 + v / (v + 1e-8) * 0.999**t)
    return p * (1 - LR * DECAY) - LR * (m_tilde + newest) / (v_tilde.sqrt() + 1e-8)


def fadam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of FAdam: algorithm 1."""

    def clipped(x: Tensor) -> Tensor:
        return x / max(1.0, x.square().mean().sqrt().item())

    t = state["step"]
    beta2 = 0.999 * (1 - 0.999 ** (t - 1)) / (1 - 0.999**t)
    state["f"] = beta2 * state.get("f", 0) + (1 - beta2) * g * g
    size = g.square().mean().sqrt().item()
    root = state["f"].sqrt() + min(1e-8, 0.01 * size)
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * clipped(g / root)
    return p - LR * (state["m"] + DECAY * clipped(p / root))


def adasmooth(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaSmooth: algorithm 1, with the ratio over all steps so far."""
    g = g + DECAY * p
    steps = state.setdefault("moves", [])
    steps.append(p - state.get("old", p))
    state["old"] = p
    path = torch.stack(steps)
    ratio = path.sum(0).abs() / (path.abs().sum(0) + 1e-6)
    c = (0.49 * ratio + 0.01).square()
    state["v"] = (1 - c) * state.get("v", 0) + c * g * g
    return p - LR * g / (state["v"] + 1e-6).sqrt()


def adapnm(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaPNM: algorithm 2, with AMSGrad's maximum."""
    t, older = state["step"], state.get("momenta", [torch.zeros_like(p)] * 2)
    newest = 0.81 * older[0] + 0.19 * g
    state["momenta"] = [older[1], newest]
    mixed = (2 * newest - older[1]) / math.sqrt(5)
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * g * g
    state.setdefault("largest", state["v"])
    state["largest"] = torch.max(state["largest"], state["v"])
    root = (state["largest"].sqrt() + 1e-8) / math.sqrt(1 - 0.99**t)
    return p * (1 - LR * DECAY) - LR / (1 - 0.9**t) * mixed / root


def ano(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Ano: algorithm 1, with Anolog's schedule of beta1."""
    t, square = state["step"], g * g
    beta1 = 1 - 1 / math.log(max(2, t))
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    v = state.get("v", torch.zeros_like(p))
    state["v"] = 0.99 * v - 0.01 * (v - square).sign() * square
    root = (state["v"] / (1 - 0.99**t)).sqrt() + 1e-8
    return p * (1 - LR * DECAY) - LR * g.abs() * state["m"].sign() / root


def bcos(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of BCOS with its conditional estimator: equation 27 and algorithm 4."""
    m, a = state.get("m", g), 0.1
    expected = (1 - (1 - 0.9) ** 2) * m * m - 2 * 0.9 * a * a * m * m
    square = expected + a * a * g * g + 2 * 0.9 * a * a * m * g
    state["m"] = (1 - a) * m + a * g
    return p * (1 - LR * DECAY) - LR * state["m"] / (square.sqrt() + 1e-6)


def aida(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Aida: algorithm 1 with two projections."""
    t = state["step"]
    g = g + DECAY * p
    state["m"] = m = 0.9 * state.get("m", 0) + 0.1 * g
    x, y = g, m
    for _ in range(2):
        inner = (x * y).sum()
        x, y = inner / x.square().sum() * x, inner / y.square().sum() * y
    state["s"] = 0.999 * state.get("s", 0) + 0.001 * (y - x).square() + 1e-8
    root = (state["s"].sqrt() + 1e-8) / math.sqrt(1 - 0.999**t)
    return p - LR * m / (1 - 0.9**t) / root


def adamg(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamG: algorithm 2, at its default rate."""
    t, g = state["step"], g + DECAY * p
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
    state["r"] = 0.95 * state.get("r", 0) + 0.05 * 0.2 * state["v"] ** 0.24
    state["m"] = 0.95 * state.get("m", 0) + 0.05 * state["r"] * g
    root = (state["v"] / (1 - 0.999**t)).sqrt() + 1e-8
    return p - min(1.0, t**-0.5) * state["m"] / (1 - 0.95**t) / root


def dual_adam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of DualAdam: a mean of InverseAdam and Adam, then Adam's from step 10."""
    m, v = moments(g + DECAY * p, state, (0.9, 0.999))
    share = max(0.0, 1 - 0.1 * state["t"])
    root = v.sqrt() + 1e-8
    return p - LR * m * (share * root + (1 - share) / root if share >= 0.1 else 1 / root)


def adamaxw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaMax: algorithm 2, with AdamW's decay."""
    t = state["step"]
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["u"] = torch.max(0.999 * state.get("u", torch.zeros_like(p)), g.abs() + 1e-8)
    return p - LR * (state["m"] / (1 - 0.9**t) / state["u"] + DECAY * p)


def adagc(params: list[Tensor], gradients: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of AdaGC: algorithm 1, whose warmup ends with step 9, and then AdamW's."""
    state["t"] = t = state.get("t", 0) + 1
    states = state.setdefault("states", [{} for _ in params])
    total = torch.cat([g.flatten() for g in gradients]).norm().item() + 1e-8
    moved = []
    for p, g, own in zip(params, gradients, states, strict=True):
        if t < 10:
            g = min(1.0, 2.0 / total) * g
            own["gamma"] = min(own.get("gamma", math.inf), g.norm().item())
        else:
            g = min(1.0, 1.05 * own["gamma"] / g.norm().item()) * g
            own["gamma"] = 0.98 * own["gamma"] + 0.02 * g.norm().item()
        m, v = moments(g, own, (0.9, 0.999))
        moved.append(p * (1 - LR * DECAY) - LR * m / (v.sqrt() + 1e-8))
    return moved


def adatam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaTAM: algorithm 2, whose correlations are normalised along rows."""
    m = state.get("m", torch.zeros_like(p))
    state["s"] = 0.9 * state.get("s", 0) + 0.1 * correlations(m, g)
    state["m"] = 0.9 * m + (0.5 + state["s"] / 2 + 1e-8) * g
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * g * g
    return p * (1 - LR * DECAY) - LR * state["m"] / (state["v"].sqrt() + 1e-8)


def correlations(m: Tensor, g: Tensor) -> Tensor:
    """Return products of elements of a momentum and a gradient, both normalised by columns."""
    axes = (0,) if m.dim() else ()
    return (
        m
        * g
        / ((m * m).sum(axes, keepdim=True) * (g * g).sum(axes, keepdim=True))
        .sqrt()
        .clamp(min=1e-12)
    )


def kate(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of KATE: algorithm 1, with eps in the sum of squares."""
    square = g * g
    state["b"] = state.get("b", 0) + square + 1e-8
    state["m"] = state.get("m", 0) + 0.1 * square + square / state["b"]
    return p * (1 - LR * DECAY) - LR * state["m"].sqrt() * g / state["b"]


def acprop(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of ACProp: algorithm 1, with the library's corrections."""
    t, m, s = state["step"], state.get("m", torch.zeros_like(p)), state.get("s")
    state["m"] = 0.9 * m + 0.1 * g
    state["s"] = 0.999 * (0 if s is None else s) + 0.001 * (g - m).square() + 1e-16
    root = 1.0 if s is None else (s / (1 - 0.999 ** (t - 1))).sqrt() + 1e-16
    return p * (1 - LR * DECAY) - LR * state["m"] / root


def adafactor_bv(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Big Vision's Adafactor, with clipping and a corrected decay."""
    t, square = state["step"], g * g + 1e-30
    weight = 1 - min(0.999, 1 - max(t - 3, 1) ** -0.8)
    means = (square.mean(-1, True), square.mean(-2, True)) if p.dim() > 1 else (square,)
    old = state.get("means", [0] * len(means))
    state["means"] = [
        (1 - weight) * last + weight * new for last, new in zip(old, means, strict=True)
    ]
    rows, *cols = state["means"]
    u = g / (rows * cols[0] / rows.mean(-2, True) if cols else rows).sqrt()
    u = u / max(1.0, u.square().mean().sqrt().item() / 0.7)
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * u
    return p * (1 - LR**2 / 0.05 * DECAY) - LR * state["m"]


def grokfast_adamw(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamW on gradients with Grokfast's filter: algorithm 2, after 5 steps."""
    state["slow"] = state.get("slow", g)
    if state["step"] > 5:
        state["slow"] = 0.98 * state["slow"] + 0.02 * g
        g = g + 2 * state["slow"]
    m, v = moments(g, state, (0.9, 0.99))
    return p * (1 - LR / 3 * DECAY) - LR / 3 * m / v.sqrt().clamp(min=1e-8)


CASES = (
    Case(
        "adai",
        over_all_parameters(adai),
        LR_AND_DECAY | {"dampening": 0.5},
    ),
    Case("adams", over_all_parameters(adams), LR_AND_DECAY),
    Case("exadam", by_parameter(exadam), LR_AND_DECAY),
    Case("fadam", by_parameter(fadam), LR_AND_DECAY),
    Case("adasmooth", by_parameter(adasmooth), LR_AND_DECAY),
    Case("adapnm", by_parameter(adapnm), LR_AND_DECAY | {"betas": (0.9, 0.99, 1.0)}),
    Case("ano", by_parameter(ano), LR_AND_DECAY | {"logarithmic_schedule": True}),
    Case("bcos", by_parameter(bcos), LR_AND_DECAY),
    Case("aida", by_parameter(aida), LR_AND_DECAY),
    Case("adamg", by_parameter(adamg), {"weight_decay": DECAY}),
    Case("dual_adam", by_parameter(dual_adam), LR_AND_DECAY | {"switch_rate": 0.1}),
    Case("adamaxw", by_parameter(adamaxw), LR_AND_DECAY),
    Case(
        "adagc",
        over_all_parameters(adagc),
        LR_AND_DECAY | {"warmup_steps": 10, "lambda_abs": 2.0},
    ),
    Case("adatam", by_parameter(adatam), LR_AND_DECAY, shapes=FLAT_SHAPES),
    Case("acprop", by_parameter(acprop), LR_AND_DECAY),
    Case(
        "adafactor_bv",
        by_parameter(adafactor_bv),
        LR_AND_DECAY | {"decay_offset": 3, "clipping_threshold": 0.7, "max_lr": 0.05},
    ),
    Case("grokfast_adamw", by_parameter(grokfast_adamw), LR_AND_DECAY | {"grokfast_after_step": 5}),
    Case("kate", by_parameter(kate), LR_AND_DECAY | {"delta": 0.1}),
)

"""Steps of rules with momentum, with norms of parameters, or on spheres, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.verification.case import Case, State, by_parameter
from optgen.verification.references.changed_moments import FLAT_SHAPES
from optgen.verification.references.moments import DECAY, LR, LR_AND_DECAY, ONLY_LR, moments


def without_radial_part(p: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, float]:
    """Project a matrix's update as AdamP does, by rows or as a whole; return a share of decay."""
    if p.dim() < 2:
        return u, 1.0
    for x, grad, update in ((p, g, u), (p.flatten()[None], g.flatten()[None], u.flatten()[None])):
        cosines = torch.nn.functional.cosine_similarity(grad, x, dim=1).abs()
        if cosines.max().item() < 0.9 / math.sqrt(x.size(1)):
            unit = x / (x.norm(dim=1, keepdim=True) + 1e-8)
            return (update - unit * (unit * update).sum(1, keepdim=True)).reshape(p.shape), 0.1
    return u, 1.0


def adamp(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdamP: algorithm 2, with Nesterov momentum."""
    m, v = moments(g, state, (0.9, 0.999))
    ahead = 0.9 * m + 0.1 * g / (1 - 0.9 ** state["t"])
    u, share = without_radial_part(p, g, ahead / (v.sqrt() + 1e-8))
    return p * (1 - LR * DECAY * share) - LR * u


def sgdp(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SGDP: algorithm 1."""
    state["b"] = 0.9 * state.get("b", 0) + g
    u, share = without_radial_part(p, g, state["b"])
    return p * (1 - LR * DECAY * share / 0.1) - LR * u


def qhm(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of QHM: equations 3 and 4."""
    g = g + DECAY * p
    state["m"] = 0.99 * state.get("m", 0) + 0.01 * g
    return p - LR * (0.3 * g + 0.7 * state["m"])


def aggmo(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AggMo: equation 2."""
    velocities = state.get("v", [torch.zeros_like(p)] * 3)
    state["v"] = [
        beta * v - (g + DECAY * p) for beta, v in zip((0, 0.9, 0.99), velocities, strict=True)
    ]
    return p + LR / 3 * torch.stack(state["v"]).sum(0)


def novograd(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of NovoGrad: algorithm 1, with averages of normalised gradients."""
    square = g.square().sum().item()
    state["v"] = 0.98 * state.get("v", square) + 0.02 * square
    u = g / (math.sqrt(state["v"]) + 1e-8) + DECAY * p
    state["m"] = 0.95 * state.get("m", 0) + 0.05 * u
    return p - LR * state["m"]


def fromage(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Fromage: algorithm 1, with the authors' bound on weights."""
    limit = state.setdefault("limit", 1.02 * p.norm().item())
    p = (p - LR * p.norm() / g.norm() * g) / math.hypot(1, LR)
    return p * min(1.0, limit / p.norm().item())


def pid(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of PID: equation 15, with the library's weights."""
    g = g + DECAY * p
    state["i"] = 0.9 * state.get("i", 0) + g
    state["d"] = 0.9 * state.get("d", 0) + 0.1 * (g - state.get("old", g))
    state["old"] = g
    return p - LR * (g + 5 * state["i"] + 10 * state["d"])


def srmm(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SRMM: algorithm 1, with a memory of 8 steps."""
    w = 1 / math.sqrt(state["step"] % 8 + 1)
    state["g"] = (1 - w) * state.get("g", 0) + w * g
    state["x"] = (1 - w) * state.get("x", 0) + w * p - LR * state["g"]
    moved: Tensor = state["x"]
    return moved


def nero(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Nero: algorithm 1. Elements of vectors are rows without constraints."""

    def constrained(x: Tensor) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        return x / x.norm(dim=1, keepdim=True)

    rows, grad = p.reshape(-1, p.size(-1)) if p.dim() > 1 else p.reshape(-1, 1), g
    grad = g.reshape(rows.shape)
    if p.dim() > 1 and state["step"] == 1:
        rows = constrained(rows)
    scale = state.setdefault("scale", rows.norm(dim=1).mean().item())
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * grad.square().sum(1, keepdim=True)
    rows = rows - LR * scale * grad / (state["v"] / (1 - 0.999 ** state["step"])).sqrt()
    return (constrained(rows) if p.dim() > 1 else rows).reshape(p.shape)


def focus(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of FOCUS: algorithm 1, with decay of the averaged weights."""
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["x"] = 0.99 * state.get("x", 0) + 0.01 * p
    x = state["x"] / (1 - 0.99 ** state["step"])
    p = p - LR * DECAY * x
    return p - LR * (state["m"].sign() + 0.2 * (p - x).sign())


PROJECTED = {"weight_decay": DECAY, "delta": 0.9, "lr": LR}
"""A large bound on the cosine, so that most updates are projected."""
CASES = (
    Case("adamp", by_parameter(adamp), PROJECTED | {"nesterov": True}, shapes=FLAT_SHAPES),
    Case("sgdp", by_parameter(sgdp), PROJECTED | {"momentum": 0.9}, shapes=FLAT_SHAPES),
    Case("qhm", by_parameter(qhm), LR_AND_DECAY | {"momentum": 0.99}),
    Case("aggmo", by_parameter(aggmo), LR_AND_DECAY),
    Case("novograd", by_parameter(novograd), LR_AND_DECAY | {"grad_averaging": True}),
    Case("fromage", by_parameter(fromage), ONLY_LR | {"p_bound": 1.02}),
    Case("pid", by_parameter(pid), LR_AND_DECAY | {"momentum": 0.9}),
    Case("srmm", by_parameter(srmm), ONLY_LR | {"memory_length": 8}),
    Case("nero", by_parameter(nero), ONLY_LR, shapes=FLAT_SHAPES),
    Case(
        "focus",
        by_parameter(focus),
        LR_AND_DECAY | {"betas": (0.9, 0.99), "gamma": 0.2},
    ),
)

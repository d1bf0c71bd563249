"""Steps of rules that make matrices orthogonal, each written from its paper or from code.

The optimizers iterate in bfloat16. Here the iterations compute in the dtype of the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.newton_schulz import Iterations
from optgen.verification.case import MATRICES, Case, Problem, State, by_parameter

POLAR_EXPRESS_COEFFICIENTS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def polar_express(x: Tensor, eps: float) -> Tensor:
    """Make a matrix orthogonal as modded-nanogpt does, but not in bfloat16."""
    y = x.mT if x.size(-2) > x.size(-1) else x
    y = y / (y.norm() * 1.02 + eps)
    for a, b, c in POLAR_EXPRESS_COEFFICIENTS:
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.mT if x.size(-2) > x.size(-1) else y


def newton_schulz(x: Tensor) -> Tensor:
    """Make a matrix of norm 1 orthogonal by twelve equal iterations."""
    for _ in range(12):
        gram = x.mT @ x
        x = 2 * x + x @ (0.5 * gram @ gram - 1.5 * gram)
    return x


def quintic_iteration(x: Tensor, eps: float = 1e-7) -> Tensor:
    """Make each matrix orthogonal as Muon does, but not in bfloat16."""
    y = x.mT if x.size(-2) > x.size(-1) else x
    y = y / torch.linalg.matrix_norm(y, keepdim=True).clamp(min=eps)
    for _ in range(5):
        gram = y @ y.mT
        y = 3.4445 * y + (-4.7750 * gram + 2.0315 * gram @ gram) @ y
    return y.mT if x.size(-2) > x.size(-1) else y


def polar_muon(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Muon, with Polar Express."""
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    update = polar_express(g.lerp(b, 0.95), 1e-6)
    return p - 0.02 * max(1, g.size(-2) / g.size(-1)) ** 0.5 * update


def normuon(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of NorMuon."""
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    update = quintic_iteration(g.lerp(b, 0.95))
    size = update.norm()
    mean = (update * update).mean(-1, keepdim=True)
    v = state["v"] = torch.lerp(state.get("v", 0 * mean), mean, 0.05)
    update = update / (v.sqrt() + 1e-10)
    update = update * (size / (update.norm() + 1e-10))
    return p - 0.02 * max(1, g.size(-2) / g.size(-1)) ** 0.5 * update


def muon_h(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of MuonH."""
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    update = g.lerp(b, 0.95)
    update = newton_schulz(update / update.norm())  # the authors add 1e-7 to the norm
    moved = p - 0.018 * p.norm() / update.norm() * update
    return moved * (p.norm() / moved.norm())


def adamuon(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AdaMuon."""
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    o = quintic_iteration(g.lerp(b, 0.95).sign())
    v = state["v"] = 0.95 * state.get("v", 0) + 0.05 * o * o
    o = o / (v.sqrt() + 1e-8)
    return p * (1 - 0.02 * 0.01) - 0.02 * 0.2 * p.numel() ** 0.5 / (o.norm() + 1e-8) * o


def amuse(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of AMUSE with a warmup of 5 steps, which finds the average as its code does."""
    t, beta = state["step"], state.get("beta", 0.9)
    z, rate = state.get("z", p), 0.02 * min(1.0, t / 5)
    x = p.lerp(z, 1 - 1 / beta)
    b = state["b"] = torch.lerp(state.get("b", 0 * g), g, 0.05)
    o = quintic_iteration(g.lerp(b, 0.95)) * 0.2 * max(p.shape) ** 0.5
    state["z"] = z = z * (1 - rate * 0.1) - rate * o
    weight = t * rate**2
    state["sum"] = state.get("sum", 0.0) + weight
    c = weight / state["sum"]
    if t == 5:
        state["c"] = c
    if t > 5:
        odds, first_odds = c / (1 - c), state["c"] / (1 - state["c"])
        beta = 1 - (odds / first_odds) ** 0.5 * 0.1
    state["beta"] = beta
    return x.lerp(z, c).lerp(z, 1 - beta)


def muon_clip(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of MuonClip: algorithm 1; each row is a head."""
    b = state["b"] = 0.95 * state.get("b", 0) + g
    o = quintic_iteration(b) * max(p.shape) ** 0.5 * 0.2
    p = p - 0.02 * (o + 0.1 * p)
    logits = state["given max_logits"]
    return p if logits is None else p * (100 / logits).clamp(max=1).sqrt()


def scion(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Scion; vectors take the norm for biases."""
    b = state["b"] = 0.9 * state.get("b", 0) + 0.1 * g
    if p.ndim == 2:
        u = (p.size(0) / p.size(1)) ** 0.5 * quintic_iteration(b)
    else:
        u = b / (b.square().mean().sqrt() + 1e-8)
    return (1 - 1e-3) * p - 1e-3 * 50 * u


def scion_by_signs(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of unconstrained Scion with the norm `Sign`: the largest absolute value."""
    b = state["b"] = 0.9 * state.get("b", 0) + 0.1 * g
    return p - 1e-3 * b.sign() / p.size(1)


def largest_logits(problem: Problem, params: list[Tensor], step: int) -> dict[str, Any]:
    """Return the largest logit of each row, or None in every third step."""
    if step % 3 == 0:
        return {"max_logits": None}
    sizes = (p.norm(dim=1, keepdim=True).expand_as(p) for p in params)
    return {"max_logits": [60 + 30 * size for size in sizes]}


def iterate_in_own_dtype(tensors: Sequence[Tensor], iterations: Iterations) -> list[Tensor]:
    """Make matrices orthogonal by the iteration that an optimizer chooses, but not in bfloat16.

    Each tensor is a matrix, or a stack of matrices.
    """
    if any(x.ndim > 2 for x in tensors):
        stacks = (iterate_in_own_dtype(x.flatten(0, -3).unbind(), iterations) for x in tensors)
        pairs = zip(stacks, tensors, strict=True)
        return [torch.stack(matrices).reshape(x.shape) for matrices, x in pairs]
    coefficients, steps, eps, *_ = iterations
    iteration = [*coefficients, steps]
    if iteration == [2.0, -1.5, 0.5, 12]:
        return [newton_schulz(x / x.norm().clamp(min=eps)) for x in tensors]
    if iteration == [3.4445, -4.7750, 2.0315, 5]:
        return [quintic_iteration(x, eps) for x in tensors]
    polar_steps = len(POLAR_EXPRESS_COEFFICIENTS)
    if len(coefficients) == 3 * polar_steps and steps == polar_steps:
        return [polar_express(x, 0) for x in tensors]
    raise ValueError(f"no reference has the iteration {iteration}: add it to {__name__}")


SPECTRAL_OPTIONS = {"scale": 50.0, "momentum": 0.1, "eps": 1e-8}
SIGN_OPTIONS = {"norm": "Sign", "unconstrained": True, "momentum": 0.1}
CASES = (
    Case(
        "polar_muon",
        by_parameter(polar_muon),
        {"eps": 1e-6},
        shapes=MATRICES,
        iterate=iterate_in_own_dtype,
    ),
    Case(
        "normuon",
        by_parameter(normuon),
        {},
        shapes=MATRICES,
        iterate=iterate_in_own_dtype,
    ),
    Case(
        "muon_h",
        by_parameter(muon_h),
        {},
        shapes=MATRICES,
        iterate=iterate_in_own_dtype,
    ),
    Case(
        "adamuon",
        by_parameter(adamuon),
        {},
        shapes=MATRICES,
        iterate=iterate_in_own_dtype,
    ),
    Case(
        "amuse",
        by_parameter(amuse),
        {"weight_decay": 0.1, "warmup_steps": 5, "rho": 0.5, "r": 1.0},
        shapes=MATRICES,
        iterate=iterate_in_own_dtype,
    ),
    Case(
        "muon_clip",
        by_parameter(muon_clip),
        {"lr": 0.02},
        shapes=MATRICES,
        iterate=iterate_in_own_dtype,
        inputs=largest_logits,
    ),
    Case(
        "scion",
        by_parameter(scion),
        SPECTRAL_OPTIONS,
        shapes=(*MATRICES, (6,)),
        iterate=iterate_in_own_dtype,
    ),
    Case("scion", by_parameter(scion_by_signs), SIGN_OPTIONS, label="signs", shapes=MATRICES),
)

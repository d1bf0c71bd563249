"""Reference steps for the rules of tests/specs, written from their papers in plain torch."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from optgen.verification.case import Case, State, by_parameter, over_all_parameters
from optgen.verification.references.whole_matrices import SQUARE_SHAPES


def novograd(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of NovoGrad as arXiv 1905.11286 has it; return the new parameter."""
    squared_norm = g.square().sum()
    state["v"] = 0.98 * state["v"] + 0.02 * squared_norm if "v" in state else squared_norm
    state["m"] = 0.95 * state.get("m", 0) + g / (state["v"].sqrt() + 1e-8) + 0.1 * p
    return p - 0.01 * state["m"]


def stable_spam(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Stable-SPAM as arXiv 2502.17055 has it; return the new parameter."""
    state["t"] = t = state.get("t", 0) + 1
    state["k"] = k = 1 if t % 7 == 0 else state.get("k", 0) + 1
    if k == 1:
        state["m"] = state["v"] = torch.zeros_like(p)
    p = p * (1 - 0.01 * 0.1)
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
    return p - 0.01 * state["m"] / (1 - 0.9**k) / root


def amos(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Amos as arXiv 2210.11693 has it; return the new parameter."""
    state["t"] = t = state.get("t", 0) + 1
    rate = 0.01 * (math.sqrt(2 / p.size(1)) if p.dim() > 1 else 0.5)
    mean_square, decay = g.square().mean(), state.get("d", torch.tensor(0.0))
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * mean_square
    inverse = (1 - 0.999**t) / (state["v"] + 1e-18)
    gamma = 0.01**2 * inverse * mean_square / (1 + 0.25 * math.sqrt(0.01) * decay).sqrt()
    update = rate * inverse.sqrt() * g + gamma / 2 * p
    state["d"] = decay + gamma * decay + gamma
    return p - update / (1 + 0.25 * math.sqrt(rate) * decay)


def madgrad(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of MADGRAD as arXiv 2101.11075 has it; return the new parameter."""
    state["t"] = t = state.get("t", 0) + 1
    start = state.setdefault("x0", p)
    g = g + 0.1 * p
    weight = (0.01 + 1e-6) * math.sqrt(t)
    state["v"] = state.get("v", 0) + weight * g.square()
    state["s"] = state.get("s", 0) + weight * g
    dual_average = start - state["s"] / (state["v"].pow(1 / 3) + 1e-6)
    return 0.9 * p + 0.1 * dual_average


def sm3(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of SM3-II as arXiv 1901.11150 has it, with its authors' momentum.

    The sets of a matrix are its rows and its columns. Each element of a vector is a set.
    """
    reduced_axes = {"v": ()} if p.dim() < 2 else {"r": (1,), "c": (0,)}
    maxima = [state.get(name, torch.tensor(0.0)) for name in reduced_axes]
    nu = functools.reduce(torch.minimum, maxima) + g.square()
    for name, axes in reduced_axes.items():
        state[name] = nu.amax(axes, keepdim=True) if axes else nu
    update = torch.where(nu == 0, 0.0, g / nu.sqrt())
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * update
    return p - 0.01 * state["m"]


def clipped_lamb(params: list[Tensor], grads: list[Tensor], state: State) -> list[Tensor]:
    """Take a step of LAMB as NVIDIA's package has it: it clips the norm of all gradients."""
    state["t"] = t = state.get("t", 0) + 1
    total_norm = math.sqrt(sum(g.square().sum().item() for g in grads))
    grads = [g / max(total_norm / 2.0, 1) for g in grads]
    ms, vs = (state.get(name, [0] * len(params)) for name in ("exp_avg", "exp_avg_sq"))
    state["exp_avg"] = [0.9 * m + 0.1 * g for m, g in zip(ms, grads, strict=True)]
    state["exp_avg_sq"] = [0.99 * v + 0.01 * g**2 for v, g in zip(vs, grads, strict=True)]
    updated = []
    for p, m, v in zip(params, state["exp_avg"], state["exp_avg_sq"], strict=True):
        u = m / (1 - 0.9**t) / ((v / (1 - 0.99**t)).sqrt() + 1e-6) + 0.1 * p
        updated.append(p - 0.01 * p.norm() / u.norm() * u)
    return updated


def kl_shampoo(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of a variant of KL-Shampoo, written from the formulas of its spec."""
    t = state["step"]
    m = state["m"] = 0.95 * state.get("m", 0) + 0.05 * g
    if t == 1:
        for side, x in enumerate((g, g.T)):
            gram = x @ x.T / x.size(1)
            eigenvalues, vectors = torch.linalg.eigh(gram)
            state[side] = {"gram": gram, "basis": vectors, "eigenvalues": eigenvalues}
    else:
        grams = []
        for side, x in enumerate((g, g.T)):
            basis, eigenvalues = state[1 - side]["basis"], state[1 - side]["eigenvalues"]
            inverse = basis @ (1 / eigenvalues.clamp(1e-8)).diag() @ basis.T
            grams.append(x @ inverse @ x.T / x.size(1))
        for side, gram in enumerate(grams):
            factor = state[side]
            factor["gram"] = 0.95 * factor["gram"] + 0.05 * gram
            if t % 10 == 0:
                factor["basis"] = torch.linalg.qr(factor["gram"] @ factor["basis"])[0]
            eigenvalues = torch.diag(factor["basis"].T @ factor["gram"] @ factor["basis"])
            factor["eigenvalues"] = 0.95 * factor["eigenvalues"] + 0.05 * eigenvalues
    roots = [
        side["basis"] @ side["eigenvalues"].clamp(1e-8).rsqrt().diag() @ side["basis"].T
        for side in (state[0], state[1])
    ]
    return p - 1e-3 * roots[0] @ m @ roots[1]


SHAPES = ((5,), (4, 3), (), (2, 7))
DECAY_OPTIONS = {"lr": 0.01, "weight_decay": 0.1}
CLIPPED_LAMB_OPTIONS = {**DECAY_OPTIONS, "betas": (0.9, 0.99), "max_grad_norm": 2.0}
PAPERS = (
    Case("novograd", by_parameter(novograd), DECAY_OPTIONS, shapes=SHAPES),
    Case(
        "stablespam", by_parameter(stable_spam), {**DECAY_OPTIONS, "reset_every": 7}, shapes=SHAPES
    ),
    Case("amos", by_parameter(amos), {"lr": 0.01}, shapes=SHAPES),
    Case("madgrad", by_parameter(madgrad), DECAY_OPTIONS, shapes=SHAPES),
    Case("sm3", by_parameter(sm3), {"lr": 0.01}, shapes=SHAPES),
)
CLIPPED_LAMB = Case(
    "clipped_lamb", over_all_parameters(clipped_lamb), CLIPPED_LAMB_OPTIONS, shapes=SHAPES
)
KL_SHAMPOO = Case("kl_shampoo", by_parameter(kl_shampoo), {}, shapes=SQUARE_SHAPES[:2])


def random_tensors(seed: int) -> list[Tensor]:
    """Return a tensor of every shape. Every fifth seed gives large numbers."""
    generator = torch.Generator().manual_seed(seed)
    scale = 20.0 if seed % 5 == 4 else 1.0
    return [torch.randn(s, generator=generator, dtype=torch.float64) * scale for s in SHAPES]

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

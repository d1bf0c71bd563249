"""Steps of the rules of tests/specs, each written from its paper in plain torch."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from optgen.verification.case import Case
from optgen.verification.reference import Values as Own
from optgen.verification.reference import alone, together
from optgen.verification.references.whole_matrices import SQUARE


def novograd(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of NovoGrad as arXiv 1905.11286 has it; return the new parameter."""
    size = g.square().sum()
    own["v"] = 0.98 * own["v"] + 0.02 * size if "v" in own else size
    own["m"] = 0.95 * own.get("m", 0) + g / (own["v"].sqrt() + 1e-8) + 0.1 * p
    return p - 0.01 * own["m"]


def stable_spam(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Stable-SPAM as arXiv 2502.17055 has it; return the new parameter."""
    own["t"] = t = own.get("t", 0) + 1
    own["k"] = k = 1 if t % 7 == 0 else own.get("k", 0) + 1
    if k == 1:
        own["m"] = own["v"] = torch.zeros_like(p)
    p = p * (1 - 0.01 * 0.1)
    own["top"] = 0.999 * own.get("top", 0) + 0.001 * g.abs().max()
    limit = own["top"] / (1 - 0.999**t)
    g = torch.where(g.abs() > limit, g / g.abs().max() * limit, g)
    own["a"] = 0.7 * own.get("a", 0) + 0.3 * g.norm()
    own["b"] = 0.9 * own.get("b", 0) + 0.1 * g.norm() ** 2
    scale = own["a"] / (1 - 0.7**t) / ((own["b"] / (1 - 0.9**t)).sqrt() + 1e-8)
    g = g / g.norm() * scale
    own["m"] = 0.9 * own["m"] + 0.1 * g
    own["v"] = 0.999 * own["v"] + 0.001 * g.square()
    root = (own["v"] / (1 - 0.999**k)).sqrt() + 1e-8
    return p - 0.01 * own["m"] / (1 - 0.9**k) / root


def amos(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Amos as arXiv 2210.11693 has it; return the new parameter."""
    own["t"] = t = own.get("t", 0) + 1
    rate = 0.01 * (math.sqrt(2 / p.size(1)) if p.dim() > 1 else 0.5)
    size, decay = g.square().mean(), own.get("d", torch.tensor(0.0))
    own["v"] = 0.999 * own.get("v", 0) + 0.001 * size
    inverse = (1 - 0.999**t) / (own["v"] + 1e-18)
    gamma = 0.01**2 * inverse * size / (1 + 0.25 * math.sqrt(0.01) * decay).sqrt()
    change = rate * inverse.sqrt() * g + gamma / 2 * p
    own["d"] = decay + gamma * decay + gamma
    return p - change / (1 + 0.25 * math.sqrt(rate) * decay)


def madgrad(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of MADGRAD as arXiv 2101.11075 has it; return the new parameter."""
    own["t"] = t = own.get("t", 0) + 1
    start = own.setdefault("x0", p)
    g = g + 0.1 * p
    weight = (0.01 + 1e-6) * math.sqrt(t)
    own["v"] = own.get("v", 0) + weight * g.square()
    own["s"] = own.get("s", 0) + weight * g
    goal = start - own["s"] / (own["v"].pow(1 / 3) + 1e-6)
    return 0.9 * p + 0.1 * goal


def sm3(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of SM3-II as arXiv 1901.11150 has it, with its authors' momentum.

    The sets of a matrix are its rows and its columns. Each element of a vector is a set.
    """
    sets = {"v": ()} if p.dim() < 2 else {"r": (1,), "c": (0,)}
    known = [own.get(name, torch.tensor(0.0)) for name in sets]
    nu = functools.reduce(torch.minimum, known) + g.square()
    for name, axes in sets.items():
        own[name] = nu.amax(axes, keepdim=True) if axes else nu
    update = torch.where(nu == 0, 0.0, g / nu.sqrt())
    own["m"] = 0.9 * own.get("m", 0) + 0.1 * update
    return p - 0.01 * own["m"]


def clipped_lamb(params: list[Tensor], grads: list[Tensor], own: Own) -> list[Tensor]:
    """Take a step of LAMB as NVIDIA's package has it, with the gradients clipped together."""
    own["t"] = t = own.get("t", 0) + 1
    total = math.sqrt(sum(g.square().sum().item() for g in grads))
    grads = [g / max(total / 2.0, 1) for g in grads]
    ms, vs = (own.get(name, [0] * len(params)) for name in ("exp_avg", "exp_avg_sq"))
    own["exp_avg"] = [0.9 * m + 0.1 * g for m, g in zip(ms, grads, strict=True)]
    own["exp_avg_sq"] = [0.99 * v + 0.01 * g**2 for v, g in zip(vs, grads, strict=True)]
    updated = []
    for p, m, v in zip(params, own["exp_avg"], own["exp_avg_sq"], strict=True):
        u = m / (1 - 0.9**t) / ((v / (1 - 0.99**t)).sqrt() + 1e-6) + 0.1 * p
        updated.append(p - 0.01 * p.norm() / u.norm() * u)
    return updated


def kl_shampoo(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of a variant of KL-Shampoo, written from the formulas of its spec."""
    t = own["step"]
    m = own["m"] = 0.95 * own.get("m", 0) + 0.05 * g
    for side, x in enumerate((g, g.T)):
        count = x.size(1)
        if t == 1:
            values, vectors = torch.linalg.eigh(x @ x.T / count)
            own[side] = {"gram": x @ x.T / count, "basis": vectors, "values": values}
    if t > 1:
        whitened = []
        for side, x in enumerate((g, g.T)):
            other = own[1 - side]
            inverse = other["basis"] @ (1 / other["values"].clamp(1e-8)).diag() @ other["basis"].T
            whitened.append(x @ inverse @ x.T / x.size(1))
        for side, gram in enumerate(whitened):
            factor = own[side]
            factor["gram"] = 0.95 * factor["gram"] + 0.05 * gram
            if t % 10 == 0:
                factor["basis"] = torch.linalg.qr(factor["gram"] @ factor["basis"])[0]
            values = torch.diag(factor["basis"].T @ factor["gram"] @ factor["basis"])
            factor["values"] = 0.95 * factor["values"] + 0.05 * values
    roots = [
        side["basis"] @ side["values"].clamp(1e-8).rsqrt().diag() @ side["basis"].T
        for side in (own[0], own[1])
    ]
    return p - 1e-3 * roots[0] @ m @ roots[1]


SHAPES = ((5,), (4, 3), (), (2, 7))
DECAY = {"lr": 0.01, "weight_decay": 0.1}
CLIPPED = {**DECAY, "betas": (0.9, 0.99), "max_grad_norm": 2.0}
PAPERS = (
    Case("novograd", alone(novograd), DECAY, shapes=SHAPES),
    Case("stablespam", alone(stable_spam), {**DECAY, "reset_every": 7}, shapes=SHAPES),
    Case("amos", alone(amos), {"lr": 0.01}, shapes=SHAPES),
    Case("madgrad", alone(madgrad), DECAY, shapes=SHAPES),
    Case("sm3", alone(sm3), {"lr": 0.01}, shapes=SHAPES),
)
CLIPPED_LAMB = Case("clipped_lamb", together(clipped_lamb), CLIPPED, shapes=SHAPES)
KL_SHAMPOO = Case("kl_shampoo", alone(kl_shampoo), {}, shapes=SQUARE[:2])


def drawn(step: int) -> list[Tensor]:
    """Return a tensor of every shape; every fifth step has a spike."""
    generator = torch.Generator().manual_seed(step)
    size = 20.0 if step % 5 == 4 else 1.0
    return [torch.randn(s, generator=generator, dtype=torch.float64) * size for s in SHAPES]

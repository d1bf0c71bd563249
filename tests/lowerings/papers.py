"""Steps of published optimizers, each written from its paper on one parameter in plain torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from lowerings.elementwise_papers import ELEMENTWISE
from torch import Tensor

Own = dict[str, Any]
"""The values that a step keeps for the next one."""


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


def adam_mini(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of Adam-mini as zyushun/Adam-mini has it for biases, and for rows of matrices."""
    own["t"] = t = own.get("t", 0) + 1
    own["m"] = 0.9 * own.get("m", 0) + 0.1 * g
    key, square = ("v", g.square()) if p.dim() < 2 else ("r", g.square().mean(1, keepdim=True))
    own[key] = 0.999 * own.get(key, 0) + 0.001 * square
    root = (own[key] / (1 - 0.999**t)).sqrt() + 1e-8
    return p * (1 - 0.01 * 0.1) - 0.01 * own["m"] / (1 - 0.9**t) / root


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


def adam_h(p: Tensor, g: Tensor, own: Own) -> Tensor:
    """Take a step of AdamH as track 3 of KellerJordan/modded-nanogpt has it."""
    own["t"] = t = own.get("t", 0) + 1
    own["m"] = 0.9 * own.get("m", 0) + 0.1 * g
    own["v"] = 0.95 * own.get("v", 0) + 0.05 * g.square()
    u = own["m"] / (1 - 0.9**t) / ((own["v"] / (1 - 0.95**t)).sqrt() + 1e-8)
    moved = p - 0.01 * u * (p.norm() / u.norm())
    return moved * (p.norm() / moved.norm())


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


DECAY = {"lr": 0.01, "weight_decay": 0.1}
PAPERS: dict[str, tuple[str, Callable[[Tensor, Tensor, Own], Tensor], dict[str, Any]]] = {
    "novograd": ("novograd", novograd, DECAY),
    "stablespam": ("stablespam", stable_spam, {**DECAY, "reset_every": 7}),
    "amos": ("amos", amos, {"lr": 0.01}),
    "adam_mini": ("adam_mini", adam_mini, DECAY),
    "madgrad": ("madgrad", madgrad, DECAY),
    "adam_h": ("adam_h", adam_h, {"lr": 0.01}),
    "sm3": ("sm3", sm3, {"lr": 0.01}),
    **ELEMENTWISE,
}
"""Specs, their steps, and the options of the class that these correspond to."""

SHAPES = ((5,), (4, 3), (), (2, 7))


def drawn(step: int) -> list[Tensor]:
    """Return a tensor of every shape; every fifth step has a spike."""
    generator = torch.Generator().manual_seed(step)
    size = 20.0 if step % 5 == 4 else 1.0
    return [torch.randn(s, generator=generator, dtype=torch.float64) * size for s in SHAPES]

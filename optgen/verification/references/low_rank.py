"""Steps of optimizers in subspaces of low rank, each written from its authors' code.

The steps take one matrix. Where the authors draw random numbers, the steps take those that our rule
draws, from `drawn_normal`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.ir.random_numbers import gaussian
from optgen.verification.case import STEPS, Case
from optgen.verification.reference import Values, alone


def drawn_normal(*shape: int, seed: int, stream: int, step: int, call: int = 0) -> Tensor:
    """Return the random numbers that a call in our rule draws, as a matrix of this shape."""
    like = torch.empty(shape, dtype=torch.float64)
    return gaussian(like, *(torch.tensor(float(n)) for n in (seed, stream, step, call)))


def dion(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of Dion with rank 2; return the new parameter."""
    rows, cols = p.shape
    if "q" not in own:
        rank = min(2, rows, cols)
        own["q"] = drawn_normal(cols, rank, seed=5, stream=own["index"], step=1)
        own["m"] = torch.zeros_like(p)
    momentum = own["m"] + g
    left, _ = torch.linalg.qr(momentum.mm(own["q"]))
    right = momentum.t().mm(left)
    own["m"] = torch.addmm(momentum, left, right.t(), alpha=-(1 - 0.9))
    own["q"] = right / (right.norm(dim=0, keepdim=True) + 1e-8)
    decayed = p.mul(1 - 0.1 * 0.02)
    return torch.addmm(decayed, left, own["q"].t(), alpha=-0.02 * math.sqrt(rows / cols))


def galore(p: Tensor, g: Tensor, own: Values, gap: int = 4) -> Tensor:
    """Take a step of GaLore with rank 2; return the new parameter.

    The authors take right singular vectors from the same decomposition as left ones. Our rule
    takes them as left vectors of the transpose, and their signs may differ. Signs matter to moments
    that outlast a basis. So this step does as our rule does, unless there is only one basis.
    """
    age, tall = own.get("t", 0), p.shape[0] >= p.shape[1]
    if age % gap == 0 and gap > STEPS:
        left, _, right = torch.linalg.svd(g, full_matrices=False)
        own["basis"] = right[:2] if tall else left[:, :2]
    elif age % gap == 0:
        left, _, _ = torch.linalg.svd(g.t() if tall else g, full_matrices=False)
        own["basis"] = left[:, :2].t() if tall else left[:, :2]
    low = g.mm(own["basis"].t()) if tall else own["basis"].t().mm(g)
    own["m"] = 0.9 * own.get("m", torch.zeros_like(low)) + 0.1 * low
    own["v"] = 0.99 * own.get("v", torch.zeros_like(low)) + 0.01 * low * low
    own["t"] = age = age + 1
    change = own["m"] / (own["v"].sqrt() + 1e-6)
    change = 0.25 * (change.mm(own["basis"]) if tall else own["basis"].mm(change))
    p = p - 0.02 * math.sqrt(1 - 0.99**age) / (1 - 0.9**age) * change
    return p - p * (0.02 * 0.1)


def galore_in_one_basis(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of GaLore that keeps its first projection."""
    return galore(p, g, own, gap=200)


def apollo(p: Tensor, g: Tensor, own: Values, mini: bool = False) -> Tensor:
    """Take a step of APOLLO with rank 2; return the new parameter."""
    rows, cols = p.shape
    rank, age, tall = min(2, rows, cols), own.get("t", 0), rows >= cols
    if age % 4 == 0:
        shape = (cols, rank) if tall else (rank, rows)
        drawn = drawn_normal(*shape, seed=5, stream=own["index"], step=age + 1, call=int(not tall))
        own["basis"] = drawn / math.sqrt(rank)
    low = g.mm(own["basis"]) if tall else own["basis"].mm(g)
    own["m"] = 0.9 * own.get("m", torch.zeros_like(low)) + 0.1 * low
    own["v"] = 0.99 * own.get("v", torch.zeros_like(low)) + 0.01 * low * low
    own["t"] = age = age + 1
    change = own["m"] / (own["v"].sqrt() + 1e-6)
    if mini:
        g = g * (change.norm() / (low.norm() + 1e-8))
    else:
        along = 1 if tall else 0
        factor = change.norm(dim=along) / (low.norm(dim=along) + 1e-8)
        g = g * (factor.unsqueeze(1) if tall else factor)
    size = g.norm()
    limit = max(size / (own["size"] + 1e-8), 1.01) / 1.01 if "size" in own else 1.0
    own["size"] = size / limit
    p = p - 0.02 * math.sqrt(1 - 0.99**age) / (1 - 0.9**age) * (g / limit) * math.sqrt(4.0)
    return p - p * (0.02 * 0.1)


def apollo_mini(p: Tensor, g: Tensor, own: Values) -> Tensor:
    """Take a step of APOLLO-Mini, which has one scale for a matrix."""
    return apollo(p, g, own, mini=True)


WITH_DECAY = {"lr": 0.02, "weight_decay": 0.1}
LOW = {**WITH_DECAY, "betas": (0.9, 0.99), "rank": 2}
RANDOM = {**LOW, "update_proj_gap": 4, "scale": 4.0, "seed": 5}
SHAPES = ((7, 4), (4, 7), (5, 5), (1, 3), (3, 1), (4, 7), (2, 6))
"""Tall, wide and square matrices, some of them smaller than the rank."""
CASES = (
    Case("dion", alone(dion), {**WITH_DECAY, "mu": 0.9, "rank": 2, "seed": 5}, shapes=SHAPES),
    Case("galore", alone(galore), {**LOW, "update_proj_gap": 4}, shapes=SHAPES),
    Case("galore", alone(galore_in_one_basis), LOW, label="in one basis", shapes=SHAPES),
    Case("apollo", alone(apollo), RANDOM, shapes=SHAPES),
    Case("apollo", alone(apollo_mini), {**RANDOM, "mini": True}, label="mini", shapes=SHAPES),
)

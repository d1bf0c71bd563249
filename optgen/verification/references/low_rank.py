"""Steps of optimizers in subspaces of low rank, each written from its authors' code.

The steps take one matrix. Where the authors draw random numbers, the steps use the numbers that our
rule draws, from `draw_normal`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from optgen.ir.random_numbers import gaussian
from optgen.verification.case import STEPS, Case, State, by_parameter


def draw_normal(*shape: int, seed: int, stream: int, step: int, call: int = 0) -> Tensor:
    """Return the random numbers that one call in our rule draws, as a matrix of this shape."""
    like = torch.empty(shape, dtype=torch.float64)
    return gaussian(like, *(torch.tensor(float(n)) for n in (seed, stream, step, call)))


def dion(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Dion with rank 2; return the new parameter."""
    rows, cols = p.shape
    if "q" not in state:
        rank = min(2, rows, cols)
        state["q"] = draw_normal(cols, rank, seed=5, stream=state["index"], step=1)
        state["m"] = torch.zeros_like(p)
    momentum = state["m"] + g
    left, _ = torch.linalg.qr(momentum.mm(state["q"]))
    right = momentum.t().mm(left)
    state["m"] = torch.addmm(momentum, left, right.t(), alpha=-(1 - 0.9))
    state["q"] = right / (right.norm(dim=0, keepdim=True) + 1e-8)
    decayed = p.mul(1 - 0.1 * 0.02)
    return torch.addmm(decayed, left, state["q"].t(), alpha=-0.02 * math.sqrt(rows / cols))


def galore(p: Tensor, g: Tensor, state: State, update_gap: int = 4) -> Tensor:
    """Take a step of GaLore with rank 2; return the new parameter.

    The authors take left and right singular vectors from one decomposition. Our rule takes right
    vectors as the left ones of the transposed matrix, and their signs may differ from the authors'.
    Moments that outlast a basis depend on the signs. So this step decomposes as our rule does,
    unless there is only one basis.
    """
    age, is_tall = state.get("t", 0), p.shape[0] >= p.shape[1]
    if age % update_gap == 0 and update_gap > STEPS:
        left, _, right = torch.linalg.svd(g, full_matrices=False)
        state["basis"] = right[:2] if is_tall else left[:, :2]
    elif age % update_gap == 0:
        left, _, _ = torch.linalg.svd(g.t() if is_tall else g, full_matrices=False)
        state["basis"] = left[:, :2].t() if is_tall else left[:, :2]
    projected = g.mm(state["basis"].t()) if is_tall else state["basis"].t().mm(g)
    state["m"] = 0.9 * state.get("m", torch.zeros_like(projected)) + 0.1 * projected
    state["v"] = 0.99 * state.get("v", torch.zeros_like(projected)) + 0.01 * projected * projected
    state["t"] = age = age + 1
    change = state["m"] / (state["v"].sqrt() + 1e-6)
    change = 0.25 * (change.mm(state["basis"]) if is_tall else state["basis"].mm(change))
    p = p - 0.02 * math.sqrt(1 - 0.99**age) / (1 - 0.9**age) * change
    return p - p * (0.02 * 0.1)


def galore_in_one_basis(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of GaLore that keeps its first projection."""
    return galore(p, g, state, update_gap=200)


def fira(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of Fira with rank 2; a wide matrix is stepped as its transpose.

    It decomposes gradients as our rule does, whose signs may differ from the authors'.
    """
    if p.shape[0] < p.shape[1]:
        return fira(p.t(), g.t(), state).t()
    t = state["step"]
    if (t - 1) % 4 == 0:
        state["basis"] = torch.linalg.svd(g.t(), full_matrices=False)[0][:, :2]
    x = g.mm(state["basis"])
    state["m"] = 0.9 * state.get("m", torch.zeros_like(x)) + 0.1 * x
    state["v"] = 0.99 * state.get("v", torch.zeros_like(x)) + 0.01 * x * x
    y = state["m"] / (state["v"].sqrt() + 1e-6)
    scale = y.norm(dim=1, keepdim=True) / (x.norm(dim=1, keepdim=True) + 1e-8)
    rest = (g - 0.5 * x.mm(state["basis"].t())) * scale
    limit = max(rest.norm() / (state["size"] + 1e-8), 1.01) / 1.01 if "size" in state else 1.0
    state["size"] = rest.norm() / limit
    change = 0.5 * y.mm(state["basis"].t()) + rest / limit
    p = p - 0.02 * math.sqrt(1 - 0.99**t) / (1 - 0.9**t) * change
    return p - p * (0.02 * 0.1)


def apollo(p: Tensor, g: Tensor, state: State, mini: bool = False) -> Tensor:
    """Take a step of APOLLO with rank 2; return the new parameter."""
    rows, cols = p.shape
    rank, age, is_tall = min(2, rows, cols), state.get("t", 0), rows >= cols
    if age % 4 == 0:
        shape = (cols, rank) if is_tall else (rank, rows)
        noise = draw_normal(
            *shape, seed=5, stream=state["index"], step=age + 1, call=int(not is_tall)
        )
        state["basis"] = noise / math.sqrt(rank)
    projected = g.mm(state["basis"]) if is_tall else state["basis"].mm(g)
    state["m"] = 0.9 * state.get("m", torch.zeros_like(projected)) + 0.1 * projected
    state["v"] = 0.99 * state.get("v", torch.zeros_like(projected)) + 0.01 * projected * projected
    state["t"] = age = age + 1
    change = state["m"] / (state["v"].sqrt() + 1e-6)
    if mini:
        g = g * (change.norm() / (projected.norm() + 1e-8))
    else:
        axis = 1 if is_tall else 0
        factor = change.norm(dim=axis) / (projected.norm(dim=axis) + 1e-8)
        g = g * (factor.unsqueeze(1) if is_tall else factor)
    size = g.norm()
    limit = max(size / (state["size"] + 1e-8), 1.01) / 1.01 if "size" in state else 1.0
    state["size"] = size / limit
    p = p - 0.02 * math.sqrt(1 - 0.99**age) / (1 - 0.9**age) * (g / limit) * math.sqrt(4.0)
    return p - p * (0.02 * 0.1)


def apollo_mini(p: Tensor, g: Tensor, state: State) -> Tensor:
    """Take a step of APOLLO-Mini, which has one scale for a matrix."""
    return apollo(p, g, state, mini=True)


WITH_DECAY = {"lr": 0.02, "weight_decay": 0.1}
LOW_RANK = {**WITH_DECAY, "betas": (0.9, 0.99), "rank": 2}
RANDOM_PROJECTIONS = {**LOW_RANK, "update_proj_gap": 4, "scale": 4.0, "seed": 5}
SHAPES = ((7, 4), (4, 7), (5, 5), (1, 3), (3, 1), (4, 7), (2, 6))
"""Tall, wide and square matrices, some of them smaller than the rank."""
CASES = (
    Case(
        "dion", by_parameter(dion), {**WITH_DECAY, "mu": 0.9, "rank": 2, "seed": 5}, shapes=SHAPES
    ),
    Case("galore", by_parameter(galore), {**LOW_RANK, "update_proj_gap": 4}, shapes=SHAPES),
    Case(
        "galore", by_parameter(galore_in_one_basis), LOW_RANK, label="in one basis", shapes=SHAPES
    ),
    Case(
        "fira",
        by_parameter(fira),
        {**LOW_RANK, "update_proj_gap": 4, "alpha": 0.5},
        shapes=SHAPES,
    ),
    Case("apollo", by_parameter(apollo), RANDOM_PROJECTIONS, shapes=SHAPES),
    Case(
        "apollo",
        by_parameter(apollo_mini),
        {**RANDOM_PROJECTIONS, "mini": True},
        label="mini",
        shapes=SHAPES,
    ),
)

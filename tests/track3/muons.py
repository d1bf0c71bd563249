"""Steps of track 3's Muons on one matrix, written anew in plain torch from the logged scripts.

Each takes a matrix, its gradient, what it keeps, and the options of its group in this step; it
returns the new matrix. `orthogonal` is not in bfloat16 as theirs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Own = dict[str, Any]
"""The values that a step keeps for the next one."""


def iterated(x: Tensor) -> Tensor:
    """Drive the singular values of a small matrix to 1 by twelve Newton-Schulz iterations."""
    for _ in range(12):
        x = 2 * x - 1.5 * x @ (x.T @ x) + 0.5 * x @ (x.T @ x) @ (x.T @ x)
    return x


def orthogonal(x: Tensor) -> Tensor:
    """Drive the singular values of a matrix to 1."""
    return iterated(x / (x.norm() + 1e-7))


def nesterov(g: Tensor, own: Own, mu: float) -> Tensor:
    """Advance the momentum; return it as it will be after the same gradient again."""
    own["m"] = mu * own.get("m", 0) + (1 - mu) * g
    return (1 - mu) * g + mu * own["m"]


def tall(x: Tensor) -> float:
    """Return by how much Muon's update of a matrix with many rows is larger."""
    return max(1.0, math.sqrt(x.size(0) / x.size(1)))


def muon(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = orthogonal(nesterov(g, own, 0.95))
    return p * (1 - o["lr"] * o["weight_decay"]) - o["lr"] * tall(p) * u


def spectral_descent(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    return p * (1 - o["lr"] * o["weight_decay"]) - o["lr"] * tall(p) * orthogonal(g)


def hyperball(p: Tensor, u: Tensor, lr: float) -> Tensor:
    """Take a step of a share `lr` of the norm of a matrix, and give it its old norm."""
    moved = p - lr * p.norm() * u / u.norm().clamp(min=1e-10)
    return p.norm() * moved / moved.norm().clamp(min=1e-10)


def adamh(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    own["t"] = t = own.get("t", 0) + 1
    own["m"] = 0.9 * own.get("m", 0) + 0.1 * g
    own["v"] = 0.95 * own.get("v", 0) + 0.05 * g * g
    root = (own["v"] / (1 - 0.95**t)).sqrt()
    return hyperball(p, own["m"] / (1 - 0.9**t) / (root + 1e-8), o["lr"])


def muonh(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    return hyperball(p, orthogonal(nesterov(g, own, 0.95)), o["lr"])


def muon_squared(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    own["v"] = 0.95 * own.get("v", 0) + 0.05 * g * g
    u = orthogonal(nesterov(g, own, 0.95) / (own["v"].sqrt() + 1e-10))
    return p * (1 - o["lr"] * o["weight_decay"]) - o["lr"] * tall(p) * u


def even(u: Tensor, own: Own) -> Tensor:
    """Divide the rows of an update, or the columns of a wide one, by their mean sizes so far."""
    axis = 1 if u.size(0) >= u.size(1) else 0
    mean = (u * u).mean(axis, keepdim=True)
    own["even"] = 0.95 * own.get("even", 0) + 0.05 * mean
    return u / own["even"].clamp(min=1e-10).sqrt()


def even_of_same_norm(u: Tensor, own: Own) -> Tensor:
    made = even(u, own)
    return made * (u.norm() / made.norm().clamp(min=1e-10))


def normuonh(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = tall(p) * orthogonal(nesterov(g, own, 0.95))
    return hyperball(p, even(u, own), o["lr"])


def normuon(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = even_of_same_norm(tall(p) * orthogonal(nesterov(g, own, 0.95)), own)
    return p * (1 - o["lr"] * o["weight_decay"]) - o["lr"] * u


def floored(p: Tensor, u: Tensor, lr: float, target: float = 0.35) -> Tensor:
    """Take a step whose update is at least `target` times as large as the matrix."""
    size, goal = u.norm().clamp(min=1e-8).item(), target * p.norm().clamp(min=1e-8).item()
    return p - lr * u * (goal / size if size < goal else 1.0)


def skylight(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = tall(p) * orthogonal(nesterov(g, own, 0.95))
    return floored(p, even_of_same_norm(u, own), o["lr"])


def largest_singular_value(x: Tensor) -> Tensor:
    """Estimate the largest singular value by five power iterations, from a vector of ones."""
    v = torch.ones(x.size(1), dtype=x.dtype) / x.size(1) ** 0.5
    for _ in range(5):
        u = x @ v / (x @ v).norm().clamp(min=1e-10)
        v = x.T @ u / (x.T @ u).norm().clamp(min=1e-10)
    return (x @ v).norm().clamp(min=1e-10)


def contra(u: Tensor, orthogonalized: Tensor) -> Tensor:
    """Take a part of a momentum away from the orthogonal matrix, which keeps its norm."""
    less = orthogonalized - 0.4 / 2 * u / largest_singular_value(u)
    return less * orthogonalized.norm() / less.norm().clamp(min=1e-10)


def contra_muon(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = nesterov(g, own, 0.95)
    u = tall(p) * contra(u, orthogonal(u))
    return floored(p, even_of_same_norm(u, own), o["lr"])


def outer_nesterov(
    p: Tensor, own: Own, step: int, lr: float, momentum: float, interval: int
) -> Tensor:
    """After a step: in some steps, move on from where the last such step ended."""
    own["steps"] = own.get("steps", 0) + 1
    if own["steps"] % interval > 0:
        return p
    delta = own["start"] - p
    own["outer"] = momentum * own.get("outer", 0) + lr * delta
    own["start"] = own["start"] - momentum * own["outer"] - lr * delta
    return own["start"]


def follow_move(p: Tensor, own: Own, look_ahead: float) -> Tensor:
    """After a step: go on from the weights, along the mean of their moves."""
    own["move"] = 0.99 * own.get("move", 0) + (1 - 0.99) * (p - own["start"])
    own["start"] = p
    return p + look_ahead * own["move"]

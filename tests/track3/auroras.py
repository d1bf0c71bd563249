"""Steps of track 3's results with Aurora on one matrix, written anew in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from track3.muons import Own, floored, iterated, nesterov, tall
from track3.soaps import learn, schatten, soap_of, soft_direction


def aurora(u: Tensor) -> Tensor:
    """Make a matrix orthogonal; scale the columns of a wide one, so that all get one size."""
    if u.size(0) >= u.size(1):
        return iterated(u / schatten(u, 1e-7))
    rows = u.T
    scale = 1.0 / rows.norm(dim=1, keepdim=True).clamp(min=1e-7)
    made = rows
    for again in (True, True, False):
        wide = (scale * rows).T
        made = iterated(wide / schatten(wide, 1e-7)).T
        if again:
            sizes = made.square().sum(1, keepdim=True).clamp(min=1e-14)
            scale = scale * (rows.size(1) / rows.size(0) / sizes) ** 0.25
    return made.T


def braked_step(p: Tensor, u: Tensor, lr: float) -> Tensor:
    """Halve the part of the update that moves outward; mend the length after the step."""
    along = (u * p).sum() / (p * p).sum().clamp(min=1e-12)
    u = u - along * p + (0.5 if along < 0 else 1.0) * along * p
    moved = floored(p, u, lr, 0.3825)
    before = p.norm().clamp(min=1e-8)
    target = (before + ((moved - p) * p).sum() / before).clamp(min=1e-8)
    return moved * target / moved.norm().clamp(min=1e-8)


def braked(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    return braked_step(p, soft_direction(p, g, own, o), o["lr"])


def aurora_muon(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = nesterov(g, own, o["momentum"])
    u = soap_of(u, own, o["value"]) if o["soap"] else u
    made = aurora(u)
    less = made - o["contra"] * u / schatten(u)
    made = tall(p) * less * schatten(made) / schatten(less)
    variances = torch.zeros(len(made), 1, dtype=made.dtype)  # its mean never moves: beta2 is 1
    made = made * (schatten(made) / schatten(made / variances.clamp(min=1e-10).sqrt())) * 1e5
    if o["soap"]:
        learn(g, own)
    return braked_step(p, made, o["lr"])

"""Steps of track 3's results with Aurora on one matrix, written anew in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from track3.muons import Values, floored, iterated, nesterov, tall_factor
from track3.soaps import schatten, soap_of, soft_direction, update_bases


def aurora(u: Tensor) -> Tensor:
    """Return an orthogonal matrix; scale the columns of a wide one to equal norms."""
    if u.size(0) >= u.size(1):
        return iterated(u / schatten(u, 1e-7))
    rows = u.T
    scale = 1.0 / rows.norm(dim=1, keepdim=True).clamp(min=1e-7)
    update = rows
    for rescale in (True, True, False):
        wide = (scale * rows).T
        update = iterated(wide / schatten(wide, 1e-7)).T
        if rescale:
            sizes = update.square().sum(1, keepdim=True).clamp(min=1e-14)
            scale = scale * (rows.size(1) / rows.size(0) / sizes) ** 0.25
    return update.T


def braked_step(p: Tensor, u: Tensor, lr: float) -> Tensor:
    """Halve the outward part of the update, take the step, and correct the norm afterwards."""
    along = (u * p).sum() / (p * p).sum().clamp(min=1e-12)
    u = u - along * p + (0.5 if along < 0 else 1.0) * along * p
    moved = floored(p, u, lr, 0.3825)
    before = p.norm().clamp(min=1e-8)
    target = (before + ((moved - p) * p).sum() / before).clamp(min=1e-8)
    return moved * target / moved.norm().clamp(min=1e-8)


def braked(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    return braked_step(p, soft_direction(p, g, memory, o), o["lr"])


def aurora_muon(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    u = nesterov(g, memory, o["momentum"])
    u = soap_of(u, memory, o["value"]) if o["soap"] else u
    update = aurora(u)
    reduced = update - o["contra"] * u / schatten(u)
    update = tall_factor(p) * reduced * schatten(update) / schatten(reduced)
    variances = torch.zeros(len(update), 1, dtype=update.dtype)  # its mean never moves: beta2 is 1
    update = (
        update * (schatten(update) / schatten(update / variances.clamp(min=1e-10).sqrt())) * 1e5
    )
    if o["soap"]:
        update_bases(g, memory)
    return braked_step(p, update, o["lr"])

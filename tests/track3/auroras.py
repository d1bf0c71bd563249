"""Steps of track 3's results with Aurora on one matrix, written anew in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from track3.muons import (
    Values,
    contra,
    nesterov,
    newton_schulz,
    orthogonalize,
    step_with_floor,
    tall_factor,
)
from track3.soaps import schatten, soap_direction, soft_direction, trusted_share, update_bases


def aurora(u: Tensor) -> Tensor:
    """Return an orthogonal matrix; the columns of a wide one get about equal norms."""
    if u.size(0) >= u.size(1):
        return newton_schulz(u / schatten(u, 1e-7))
    rows = u.T
    scale = 1.0 / rows.norm(dim=1, keepdim=True).clamp(min=1e-7)
    update = rows
    for rescale in (True, True, False):
        scaled = (scale * rows).T
        update = newton_schulz(scaled / schatten(scaled, 1e-7)).T
        if rescale:
            sizes = update.square().sum(1, keepdim=True).clamp(min=1e-14)
            scale = scale * (rows.size(1) / rows.size(0) / sizes) ** 0.25
    return update.T


def leveled(u: Tensor) -> Tensor:
    """Return an orthogonal matrix whose lines of the long side have about equal norms."""
    if u.size(0) == u.size(1):
        return orthogonalize(u)
    tall = u if u.size(0) > u.size(1) else u.T
    scale = 1.0 / tall.norm(dim=1, keepdim=True).clamp(min=1e-7)
    sizes = orthogonalize(scale * tall).square().sum(1, keepdim=True).clamp(min=1e-14)
    update = orthogonalize(scale * (tall.size(1) / tall.size(0) / sizes) ** 0.5 * tall)
    return update if u.size(0) > u.size(1) else update.T


def contra_aurora(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = nesterov(g, memory, 0.95)
    return step_with_floor(p, tall_factor(p) * contra(u, leveled(u)), options["lr"])


def braked(p: Tensor, u: Tensor) -> Tensor:
    """Halve the outward part of an update."""
    along = (u * p).sum() / (p * p).sum().clamp(min=1e-12)
    return u - along * p + (0.5 if along < 0 else 1.0) * along * p


def braked_step(p: Tensor, u: Tensor, lr: float) -> Tensor:
    """Halve the outward part of the update, take the step, and correct the norm of the matrix."""
    return with_radial_norm(p, step_with_floor(p, braked(p, u), lr, 0.3825))


def with_radial_norm(p: Tensor, moved: Tensor) -> Tensor:
    """Scale a matrix after a step to the norm that the radial part of the step alone gives it."""
    before = p.norm().clamp(min=1e-8)
    target = (before + ((moved - p) * p).sum() / before).clamp(min=1e-8)
    return moved * target / moved.norm().clamp(min=1e-8)


def braked_muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    return braked_step(p, soft_direction(p, g, memory, options), options["lr"])


def aurora_muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = nesterov(g, memory, options["momentum"])
    u = soap_direction(u, memory, options["value"]) if options["soap"] else u
    update = aurora(u)
    reduced = update - options["contra"] * u / schatten(u)
    update = tall_factor(p) * reduced * schatten(update) / schatten(reduced)
    variances = torch.zeros(len(update), 1, dtype=update.dtype)  # they stay 0, because beta2 is 1
    update = (
        update * (schatten(update) / schatten(update / variances.clamp(min=1e-10).sqrt())) * 1e5
    )
    if options["soap"]:
        update_bases(g, memory)
    return braked_step(p, update, options["lr"])


def soap_muon_update(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    """Return the update of result 44 before the brake and the floor."""
    momentum = nesterov(g, memory, options["momentum"])
    u = soap_direction(momentum, memory, value=False)
    if options["gated"] and "bases" in memory:
        share = trusted_share(momentum, u, g, options["trust"])
        mean = momentum + (u - momentum) * share
        u = mean * (schatten(momentum, 1e-8) / schatten(mean, 1e-8))
    update = tall_factor(p) * newton_schulz(u / schatten(u, 1e-7))
    update_bases(g, memory, interval=1)
    return update


def soap_muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    return braked_step(p, soap_muon_update(p, g, memory, options), options["lr"])


def soap_muon_with_row_floor(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = braked(p, soap_muon_update(p, g, memory, options))
    sizes, goals = (x.norm(dim=1, keepdim=True).clamp(min=1e-8) for x in (u, p))
    u = u * (0.3825 * goals / sizes).clamp(min=1.0)
    moved = with_radial_norm(p, p - options["lr"] * u)
    return torch.where(u * p > 0, moved * (1.0 - options["lr"] * 0.025), moved)

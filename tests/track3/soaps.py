"""Steps of track 3's rules in eigenbases on one matrix, written anew in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from track3.muons import (
    Own,
    contra,
    even,
    even_of_same_norm,
    floored,
    hyperball,
    nesterov,
    orthogonal,
    tall,
)


def sides(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient as the rows and as the columns see it."""
    return g, g.T


def basis(gram: Tensor) -> Tensor:
    """Return the eigenvectors of a covariance, those of the largest eigenvalues first."""
    return torch.linalg.eigh(gram)[1].flip(1)


def into(x: Tensor, bases: list[Tensor]) -> Tensor:
    return bases[0].T @ x @ bases[1]


def back(x: Tensor, bases: list[Tensor]) -> Tensor:
    return bases[0] @ x @ bases[1].T


def mix(old: Tensor | float, new: Tensor, weight: float) -> Tensor:
    return weight * old + (1 - weight) * new


def turn(own: Own) -> None:
    """Take a power iteration of each covariance from its basis."""
    pairs = zip(own["grams"], own["bases"], strict=True)
    own["bases"] = [torch.linalg.qr(gram @ basis)[0] for gram, basis in pairs]


def soaph(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    if "bases" not in own:
        own |= {"bases": [basis(x @ x.T) for x in sides(g)], "grams": [0.0, 0.0], "m": 0, "v": 0}
    own["m"] = mix(own["m"], g, 0.95)
    own["grams"] = [mix(old, x @ x.T, 0.9) for old, x in zip(own["grams"], sides(g), strict=True)]
    own["v"] = mix(own["v"], into(g, own["bases"]).square(), 0.9)
    u = back(into(own["m"], own["bases"]) / (own["v"].sqrt() + 1e-8), own["bases"])
    turn(own)
    return hyperball(p, u, o["lr"])


def klsoaph(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    counts = g.shape[::-1]
    if "bases" not in own:
        own["grams"] = [x @ x.T / n for x, n in zip(sides(g), counts, strict=True)]
        own |= {"bases": [basis(x) for x in own["grams"]], "m": 0, "v": 0}
        own["inverse"] = [torch.full((n,), 0.1**-0.5, dtype=g.dtype) for n in g.shape]
        return p
    x = into(g, own["bases"])
    own["m"], own["v"] = mix(own["m"], x, 0.95), mix(own["v"], x * x, 0.9)
    u = back(own["m"] / (own["v"].sqrt() + 1e-8), own["bases"])
    before, made = own["inverse"], []
    for side, seen in enumerate(sides(g)):
        other = own["bases"][1 - side] * before[1 - side]
        whitened = seen @ other
        own["grams"][side] = mix(own["grams"][side], whitened @ whitened.T / counts[side], 0.9)
        variances = (own["bases"][side].T @ whitened).square().mean(1)
        values = mix(1 / before[side] ** 2, variances, 0.9)
        made.append(values.clamp(min=1e-30).rsqrt().clamp(max=4000.0))
    own["inverse"] = made
    momentum = back(own["m"], own["bases"])
    turn(own)
    own["m"] = into(momentum, own["bases"])
    return hyperball(p, u, o["lr"])


def preconditioned(u: Tensor, own: Own, eps: float, ratio: float = 0.0) -> Tensor:
    """Divide a momentum in SOAP's basis by the root of its second moment; keep its norm.

    Args:
        u: the momentum.
        own: what the rule keeps.
        eps: is added to the root; or the root is at least 1e-8.
        ratio: the least share of its own mean size that an element of the root has.
    """
    if "bases" not in own:
        return u
    x = into(u, own["bases"])
    own["v"] = mix(own.get("v", 0), x * x, 0.9)
    root = own["v"].sqrt() + eps if eps else own["v"].sqrt().clamp(min=1e-8)
    if ratio > 0:
        root = root.clamp(min=max(ratio * root.square().mean().sqrt().item(), 1e-8))
    y = back(x / root, own["bases"])
    return y * u.norm() / y.norm().clamp(min=1e-8)


def learn(g: Tensor, own: Own) -> None:
    """Advance the covariances; in every tenth step sort and turn the bases."""
    first = "bases" not in own
    own["k"] = own.get("k", -1) + 1
    grams = own.get("grams", [0.0, 0.0])
    own["grams"] = [mix(old, x @ x.T, 0.9) for old, x in zip(grams, sides(g), strict=True)]
    if first:
        own["bases"] = [basis(gram) for gram in own["grams"]]
    elif own["k"] % 10 == 0:
        for side, gram in enumerate(own["grams"]):
            old = own["bases"][side]
            order = (old * (gram @ old)).sum(0).argsort(descending=True)
            own["bases"][side] = torch.linalg.qr(gram @ old[:, order])[0]
            own["v"] = own["v"].index_select(side, order)


def contra_soap(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = nesterov(g, own, 0.95)
    if o["soap"]:
        u = preconditioned(u, own, 1e-8)
    u = even_of_same_norm(tall(p) * contra(u, orthogonal(u)), own)
    if o["soap"]:
        learn(g, own)
    return floored(p, u, o["lr"])


def agreement(x: Tensor, y: Tensor) -> float:
    return ((x * y).sum() / (x.norm() * y.norm()).clamp(min=1e-8)).item()


def trusted(raw: Tensor, soap: Tensor, g: Tensor, trust: tuple[float, float]) -> Tensor:
    """Return a mean of both directions, with the norm of the first."""
    near = min(max((agreement(soap, raw) - 0.2) / (1 - 0.2), 0.0), 1.0)
    gain = min(max(agreement(soap, g) / max(agreement(raw, g), 1e-8), 0.0), 1.0)
    share = min(max(near * gain, trust[0]), trust[1])
    mean = (1 - share) * raw + share * soap
    return mean * raw.norm().clamp(min=1e-8) / mean.norm().clamp(min=1e-8)


def trustlight(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    u = nesterov(g, own, 0.95)
    if o["gated"]:
        u = trusted(u, preconditioned(u, own, 0.0, 0.2), g, o["trust"])
    elif o["soap"]:
        u = preconditioned(u, own, 0.0)
    u = even_of_same_norm(tall(p) * contra(u, orthogonal(u)), own)
    if o["soap"]:
        learn(g, own)
    return floored(p, u, o["lr"])


def trust_bounds(step: float) -> tuple[float, float]:
    """Return the bounds of the gate: the lower one fades between steps 1375 and 1625."""
    if step >= 1625:
        return 0.0, 1.0
    return 0.45 * min(1.0, (1625 - step) / 250), 0.85


def inverse_fourth_root(x: Tensor, eps: float) -> Tensor:
    u, values, v = torch.linalg.svd(x + eps * torch.eye(len(x), dtype=x.dtype))
    return u @ (values**-0.25).diag() @ v


def shampoo(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    own["t"] = t = own.get("t", 0) + 1
    own["m"], own["v"] = mix(own.get("m", 0), g, 0.9), mix(own.get("v", 0), g * g, 0.95)
    grams = own.get("grams", [0.0, 0.0])
    own["grams"] = [mix(old, x @ x.T, 0.95) for old, x in zip(grams, sides(g), strict=True)]
    if t % 5 == 0:
        own["roots"] = [inverse_fourth_root(x / (1 - 0.95**t), 1e-12) for x in own["grams"]]
    mean = own["m"] / (1 - 0.9**t)
    u = mean / ((own["v"] / (1 - 0.95**t)).sqrt() + 1e-10)
    if t >= 5:
        direction = own["roots"][0] @ mean @ own["roots"][1]
        u = direction * (u.norm() / (direction.norm() + 1e-16))
    return p - o["lr"] * u - o["lr"] * o["weight_decay"] * p


def schatten(x: Tensor, least: float = 1e-10) -> Tensor:
    """Return the fourth root of the sum of the fourth powers of the singular values."""
    return ((x.T @ x).square().sum() ** 0.25).clamp(min=least)


SOFTENING = (
    0.1091613623,
    0.07085664498,
    0.05210528973,
    0.05457295795,
    0.05011334061,
    0.03334622198,
)
SOFTENING += (0.05022104481, 0.1053727358, 0.1187323776, 0.1185061091, 0.1185059576, 0.1185059576)


def iterates(x: Tensor) -> list[Tensor]:
    """Return a matrix of size 1 and what twelve Newton-Schulz iterations make of it."""
    made = [x / schatten(x, 1e-7)]
    for _ in SOFTENING:
        last = made[-1]
        gram = last.T @ last
        made.append(2 * last - 1.5 * last @ gram + 0.5 * last @ gram @ gram)
    return made


def soap_of(u: Tensor, own: Own, value: bool) -> Tensor:
    """Return a momentum divided in SOAP's basis, with its size; for value weights not wholly."""
    if "bases" not in own:
        return u
    x = into(u, own["bases"])
    own["v"] = mix(own.get("v", 0), x * x, 0.9)
    root = own["v"].sqrt().clamp(min=1e-8)
    if value:
        root = torch.maximum(root, 0.55 * root.square().mean().sqrt())
    y = back(x / root, own["bases"])
    y = 0.95 * y + 0.05 * u if value else y
    return y * schatten(u, 1e-8) / schatten(y, 1e-8)


def soft_direction(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    """Return result 20's update before the floor."""
    u = nesterov(g, own, 0.95)
    u = soap_of(u, own, o["value"]) if o["soap"] else u
    found = iterates(u)
    polar, size = found[-1], schatten(found[-1])
    less = polar - o["contra"] * u / schatten(u)
    soft = sum((c * x for c, x in zip(SOFTENING, found, strict=False)), torch.zeros_like(u))
    mean = (1 - o["soft"]) * less / schatten(less) + o["soft"] * soft / schatten(soft)
    u = tall(p) * size * mean / schatten(mean)
    made = even(u, own)
    made = made * schatten(u) / schatten(made)
    if o["soap"]:
        learn(g, own)
    return made


def soft_muon(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    return floored(p, soft_direction(p, g, own, o), o["lr"], 0.3825)


def anchored(p: Tensor, g: Tensor, own: Own, o: Own) -> Tensor:
    """Draw the weights to the first ones before the update is added."""
    first, count = own.setdefault("first", p), own.get("count", 0)
    own["count"] = count + 1
    u = soft_direction(p, g, own, o)
    share = o["pull"] / (count + 2)
    return floored(p, u, o["lr"], 0.3825) - share * (p - first)

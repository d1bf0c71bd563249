"""Steps of track 3's rules in eigenbases on one matrix, written anew in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from track3.muons import (
    Values,
    contra,
    equalize,
    equalize_and_keep_norm,
    floored,
    hyperball,
    nesterov,
    orthogonal,
    tall_factor,
)


def sides(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient and its transpose, whose rows are the rows and the columns."""
    return g, g.T


def basis(gram: Tensor) -> Tensor:
    """Return the eigenvectors of a covariance, those of the largest eigenvalues first."""
    return torch.linalg.eigh(gram)[1].flip(1)


def to_bases(x: Tensor, bases: list[Tensor]) -> Tensor:
    """Return a matrix in these bases of its rows and columns."""
    return bases[0].T @ x @ bases[1]


def from_bases(x: Tensor, bases: list[Tensor]) -> Tensor:
    """Return a matrix that is given in these bases in the standard basis."""
    return bases[0] @ x @ bases[1].T


def mix(old: Tensor | float, new: Tensor, weight: float) -> Tensor:
    return weight * old + (1 - weight) * new


def turn_bases(memory: Values) -> None:
    """Take a power iteration of each covariance from its basis."""
    pairs = zip(memory["grams"], memory["bases"], strict=True)
    memory["bases"] = [torch.linalg.qr(gram @ basis)[0] for gram, basis in pairs]


def soaph(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    if "bases" not in memory:
        memory |= {"bases": [basis(x @ x.T) for x in sides(g)], "grams": [0.0, 0.0], "m": 0, "v": 0}
    memory["m"] = mix(memory["m"], g, 0.95)
    memory["grams"] = [
        mix(old, x @ x.T, 0.9) for old, x in zip(memory["grams"], sides(g), strict=True)
    ]
    memory["v"] = mix(memory["v"], to_bases(g, memory["bases"]).square(), 0.9)
    u = from_bases(
        to_bases(memory["m"], memory["bases"]) / (memory["v"].sqrt() + 1e-8), memory["bases"]
    )
    turn_bases(memory)
    return hyperball(p, u, o["lr"])


def klsoaph(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    counts = g.shape[::-1]
    if "bases" not in memory:
        memory["grams"] = [x @ x.T / n for x, n in zip(sides(g), counts, strict=True)]
        memory |= {"bases": [basis(x) for x in memory["grams"]], "m": 0, "v": 0}
        memory["inverse"] = [torch.full((n,), 0.1**-0.5, dtype=g.dtype) for n in g.shape]
        return p
    x = to_bases(g, memory["bases"])
    memory["m"], memory["v"] = mix(memory["m"], x, 0.95), mix(memory["v"], x * x, 0.9)
    u = from_bases(memory["m"] / (memory["v"].sqrt() + 1e-8), memory["bases"])
    before, inverse = memory["inverse"], []
    for side, of_side in enumerate(sides(g)):
        other = memory["bases"][1 - side] * before[1 - side]
        whitened = of_side @ other
        memory["grams"][side] = mix(
            memory["grams"][side], whitened @ whitened.T / counts[side], 0.9
        )
        variances = (memory["bases"][side].T @ whitened).square().mean(1)
        values = mix(1 / before[side] ** 2, variances, 0.9)
        inverse.append(values.clamp(min=1e-30).rsqrt().clamp(max=4000.0))
    memory["inverse"] = inverse
    momentum = from_bases(memory["m"], memory["bases"])
    turn_bases(memory)
    memory["m"] = to_bases(momentum, memory["bases"])
    return hyperball(p, u, o["lr"])


def preconditioned(u: Tensor, memory: Values, eps: float, ratio: float = 0.0) -> Tensor:
    """Divide a momentum in SOAP's basis by the root of its second moment; keep its norm.

    Args:
        u: the momentum.
        memory: the values that the rule keeps.
        eps: a number to add to the root; with 0, the root is at least 1e-8.
        ratio: the least size of an element of the root, relative to the root's RMS.
    """
    if "bases" not in memory:
        return u
    x = to_bases(u, memory["bases"])
    memory["v"] = mix(memory.get("v", 0), x * x, 0.9)
    root = memory["v"].sqrt() + eps if eps else memory["v"].sqrt().clamp(min=1e-8)
    if ratio > 0:
        root = root.clamp(min=max(ratio * root.square().mean().sqrt().item(), 1e-8))
    y = from_bases(x / root, memory["bases"])
    return y * u.norm() / y.norm().clamp(min=1e-8)


def update_bases(g: Tensor, memory: Values) -> None:
    """Advance the covariances; in every tenth step sort and turn the bases."""
    first = "bases" not in memory
    memory["k"] = memory.get("k", -1) + 1
    grams = memory.get("grams", [0.0, 0.0])
    memory["grams"] = [mix(old, x @ x.T, 0.9) for old, x in zip(grams, sides(g), strict=True)]
    if first:
        memory["bases"] = [basis(gram) for gram in memory["grams"]]
    elif memory["k"] % 10 == 0:
        for side, gram in enumerate(memory["grams"]):
            old = memory["bases"][side]
            order = (old * (gram @ old)).sum(0).argsort(descending=True)
            memory["bases"][side] = torch.linalg.qr(gram @ old[:, order])[0]
            memory["v"] = memory["v"].index_select(side, order)


def contra_soap(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    u = nesterov(g, memory, 0.95)
    if o["soap"]:
        u = preconditioned(u, memory, 1e-8)
    u = equalize_and_keep_norm(tall_factor(p) * contra(u, orthogonal(u)), memory)
    if o["soap"]:
        update_bases(g, memory)
    return floored(p, u, o["lr"])


def agreement(x: Tensor, y: Tensor) -> float:
    """Return the cosine of the angle between two matrices."""
    return ((x * y).sum() / (x.norm() * y.norm()).clamp(min=1e-8)).item()


def trusted(raw: Tensor, soap: Tensor, g: Tensor, trust: tuple[float, float]) -> Tensor:
    """Return a mean of both directions, with the norm of the first."""
    agreement_of_both = min(max((agreement(soap, raw) - 0.2) / (1 - 0.2), 0.0), 1.0)
    gain = min(max(agreement(soap, g) / max(agreement(raw, g), 1e-8), 0.0), 1.0)
    share = min(max(agreement_of_both * gain, trust[0]), trust[1])
    mean = (1 - share) * raw + share * soap
    return mean * raw.norm().clamp(min=1e-8) / mean.norm().clamp(min=1e-8)


def trustlight(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    u = nesterov(g, memory, 0.95)
    if o["gated"]:
        u = trusted(u, preconditioned(u, memory, 0.0, 0.2), g, o["trust"])
    elif o["soap"]:
        u = preconditioned(u, memory, 0.0)
    u = equalize_and_keep_norm(tall_factor(p) * contra(u, orthogonal(u)), memory)
    if o["soap"]:
        update_bases(g, memory)
    return floored(p, u, o["lr"])


def trust_bounds(step: float) -> tuple[float, float]:
    """Return the bounds of the gate: the lower one fades between steps 1375 and 1625."""
    if step >= 1625:
        return 0.0, 1.0
    return 0.45 * min(1.0, (1625 - step) / 250), 0.85


def inverse_fourth_root(x: Tensor, eps: float) -> Tensor:
    u, values, v = torch.linalg.svd(x + eps * torch.eye(len(x), dtype=x.dtype))
    return u @ (values**-0.25).diag() @ v


def shampoo(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    memory["t"] = t = memory.get("t", 0) + 1
    memory["m"], memory["v"] = mix(memory.get("m", 0), g, 0.9), mix(memory.get("v", 0), g * g, 0.95)
    grams = memory.get("grams", [0.0, 0.0])
    memory["grams"] = [mix(old, x @ x.T, 0.95) for old, x in zip(grams, sides(g), strict=True)]
    if t % 5 == 0:
        memory["roots"] = [inverse_fourth_root(x / (1 - 0.95**t), 1e-12) for x in memory["grams"]]
    mean = memory["m"] / (1 - 0.9**t)
    u = mean / ((memory["v"] / (1 - 0.95**t)).sqrt() + 1e-10)
    if t >= 5:
        direction = memory["roots"][0] @ mean @ memory["roots"][1]
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
    """Return a matrix of Schatten norm 1, and the results of twelve Newton-Schulz iterations."""
    results = [x / schatten(x, 1e-7)]
    for _ in SOFTENING:
        last = results[-1]
        gram = last.T @ last
        results.append(2 * last - 1.5 * last @ gram + 0.5 * last @ gram @ gram)
    return results


def soap_of(u: Tensor, memory: Values, value: bool) -> Tensor:
    """Return a momentum divided in SOAP's basis, with its old Schatten norm.

    With `value`, for matrices of attention values, the divisors have a floor, and the momentum is
    mixed into the result.
    """
    if "bases" not in memory:
        return u
    x = to_bases(u, memory["bases"])
    memory["v"] = mix(memory.get("v", 0), x * x, 0.9)
    root = memory["v"].sqrt().clamp(min=1e-8)
    if value:
        root = torch.maximum(root, 0.55 * root.square().mean().sqrt())
    y = from_bases(x / root, memory["bases"])
    y = 0.95 * y + 0.05 * u if value else y
    return y * schatten(u, 1e-8) / schatten(y, 1e-8)


def soft_direction(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    """Return result 20's update before the floor."""
    u = nesterov(g, memory, 0.95)
    u = soap_of(u, memory, o["value"]) if o["soap"] else u
    iterations = iterates(u)
    polar, size = iterations[-1], schatten(iterations[-1])
    reduced = polar - o["contra"] * u / schatten(u)
    soft = sum((c * x for c, x in zip(SOFTENING, iterations, strict=False)), torch.zeros_like(u))
    mean = (1 - o["soft"]) * reduced / schatten(reduced) + o["soft"] * soft / schatten(soft)
    u = tall_factor(p) * size * mean / schatten(mean)
    update = equalize(u, memory)
    update = update * schatten(u) / schatten(update)
    if o["soap"]:
        update_bases(g, memory)
    return update


def soft_muon(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    return floored(p, soft_direction(p, g, memory, o), o["lr"], 0.3825)


def anchored(p: Tensor, g: Tensor, memory: Values, o: Values) -> Tensor:
    """Pull the weights towards the first ones before the update is added."""
    first, count = memory.setdefault("first", p), memory.get("count", 0)
    memory["count"] = count + 1
    u = soft_direction(p, g, memory, o)
    share = o["pull"] / (count + 2)
    return floored(p, u, o["lr"], 0.3825) - share * (p - first)

"""Steps of track 3's rules in eigenbases on one matrix, written anew in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from track3.muons import (
    Values,
    contra,
    equalize,
    equalize_and_keep_norm,
    hyperball,
    nesterov,
    orthogonalize,
    step_with_floor,
    tall_factor,
)

from optgen.ir.random_numbers import gaussian


def rows_and_columns(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient and its transpose; the rows of the transpose are the columns."""
    return g, g.T


def basis(gram: Tensor) -> Tensor:
    """Return the eigenvectors of a covariance, those of the largest eigenvalues first."""
    return torch.linalg.eigh(gram)[1].flip(1)


def to_bases(x: Tensor, bases: list[Tensor]) -> Tensor:
    """Return the form of a matrix in these bases of its rows and columns."""
    return bases[0].T @ x @ bases[1]


def from_bases(x: Tensor, bases: list[Tensor]) -> Tensor:
    """Return a matrix in the standard basis, from its form in these bases."""
    return bases[0] @ x @ bases[1].T


def mix(old: Tensor | float, new: Tensor, weight: float) -> Tensor:
    """Return the mean of two values in which the old one has this weight."""
    return weight * old + (1 - weight) * new


def turn_bases(memory: Values) -> None:
    """Replace each basis by the result of a power iteration of its covariance."""
    pairs = zip(memory["grams"], memory["bases"], strict=True)
    memory["bases"] = [torch.linalg.qr(gram @ basis)[0] for gram, basis in pairs]


def soaph(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    if "bases" not in memory:
        memory |= {
            "bases": [basis(x @ x.T) for x in rows_and_columns(g)],
            "grams": [0.0, 0.0],
            "m": 0,
            "v": 0,
        }
    memory["m"] = mix(memory["m"], g, 0.95)
    memory["grams"] = [
        mix(old, x @ x.T, 0.9) for old, x in zip(memory["grams"], rows_and_columns(g), strict=True)
    ]
    memory["v"] = mix(memory["v"], to_bases(g, memory["bases"]).square(), 0.9)
    u = from_bases(
        to_bases(memory["m"], memory["bases"]) / (memory["v"].sqrt() + 1e-8), memory["bases"]
    )
    turn_bases(memory)
    return hyperball(p, u, options["lr"])


def klsoaph(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    lengths = g.shape[::-1]
    if "bases" not in memory:
        memory["grams"] = [x @ x.T / n for x, n in zip(rows_and_columns(g), lengths, strict=True)]
        memory |= {"bases": [basis(x) for x in memory["grams"]], "m": 0, "v": 0}
        memory["inverse"] = [torch.full((n,), 0.1**-0.5, dtype=g.dtype) for n in g.shape]
        return p
    x = to_bases(g, memory["bases"])
    memory["m"], memory["v"] = mix(memory["m"], x, 0.95), mix(memory["v"], x * x, 0.9)
    u = from_bases(memory["m"] / (memory["v"].sqrt() + 1e-8), memory["bases"])
    old_inverse, inverse = memory["inverse"], []
    for side, gradient in enumerate(rows_and_columns(g)):
        other_whitening = memory["bases"][1 - side] * old_inverse[1 - side]
        whitened = gradient @ other_whitening
        memory["grams"][side] = mix(
            memory["grams"][side], whitened @ whitened.T / lengths[side], 0.9
        )
        variances = (memory["bases"][side].T @ whitened).square().mean(1)
        values = mix(1 / old_inverse[side] ** 2, variances, 0.9)
        inverse.append(values.clamp(min=1e-30).rsqrt().clamp(max=4000.0))
    memory["inverse"] = inverse
    momentum = from_bases(memory["m"], memory["bases"])
    turn_bases(memory)
    memory["m"] = to_bases(momentum, memory["bases"])
    return hyperball(p, u, options["lr"])


def precondition(u: Tensor, memory: Values, eps: float, ratio: float = 0.0) -> Tensor:
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


def update_bases(g: Tensor, memory: Values, interval: int = 10) -> None:
    """Advance the covariances; every `interval` steps sort and turn the bases."""
    first = "bases" not in memory
    memory["k"] = memory.get("k", -1) + 1
    grams = memory.get("grams", [0.0, 0.0])
    memory["grams"] = [
        mix(old, x @ x.T, 0.9) for old, x in zip(grams, rows_and_columns(g), strict=True)
    ]
    if first:
        memory["bases"] = [basis(gram) for gram in memory["grams"]]
    elif memory["k"] % interval == 0:
        for side, gram in enumerate(memory["grams"]):
            old = memory["bases"][side]
            order = (old * (gram @ old)).sum(0).argsort(descending=True)
            memory["bases"][side] = torch.linalg.qr(gram @ old[:, order])[0]
            memory["v"] = memory["v"].index_select(side, order)


def contra_soap(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = nesterov(g, memory, 0.95)
    if options["soap"]:
        u = precondition(u, memory, 1e-8)
    u = equalize_and_keep_norm(tall_factor(p) * contra(u, orthogonalize(u)), memory)
    if options["soap"]:
        update_bases(g, memory)
    return step_with_floor(p, u, options["lr"])


def cosine(x: Tensor, y: Tensor) -> float:
    """Return the cosine of the angle between two matrices."""
    return ((x * y).sum() / (x.norm() * y.norm()).clamp(min=1e-8)).item()


def trusted_share(momentum: Tensor, soap: Tensor, g: Tensor, trust: tuple[float, float]) -> float:
    """Return the share of a SOAP direction in its mean with a momentum."""
    agreement = min(max((cosine(soap, momentum) - 0.2) / (1 - 0.2), 0.0), 1.0)
    gain = min(max(cosine(soap, g) / max(cosine(momentum, g), 1e-8), 0.0), 1.0)
    return min(max(agreement * gain, trust[0]), trust[1])


def blend_by_trust(momentum: Tensor, soap: Tensor, g: Tensor, trust: tuple[float, float]) -> Tensor:
    """Return a weighted mean of a momentum and its SOAP direction, with the momentum's norm."""
    share = trusted_share(momentum, soap, g, trust)
    mean = (1 - share) * momentum + share * soap
    return mean * momentum.norm().clamp(min=1e-8) / mean.norm().clamp(min=1e-8)


def trustlight(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = nesterov(g, memory, 0.95)
    if options["gated"]:
        u = blend_by_trust(u, precondition(u, memory, 0.0, 0.2), g, options["trust"])
    elif options["soap"]:
        u = precondition(u, memory, 0.0)
    u = equalize_and_keep_norm(tall_factor(p) * contra(u, orthogonalize(u)), memory)
    if options["soap"]:
        update_bases(g, memory)
    return step_with_floor(p, u, options["lr"])


def trust_bounds(step: float) -> tuple[float, float]:
    """Return the bounds of the gate: the lower one fades between steps 1375 and 1625."""
    if step >= 1625:
        return 0.0, 1.0
    return 0.45 * min(1.0, (1625 - step) / 250), 0.85


def inverse_fourth_root(x: Tensor, eps: float) -> Tensor:
    u, values, v = torch.linalg.svd(x + eps * torch.eye(len(x), dtype=x.dtype))
    return u @ (values**-0.25).diag() @ v


def shampoo(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    memory["t"] = t = memory.get("t", 0) + 1
    memory["m"], memory["v"] = mix(memory.get("m", 0), g, 0.9), mix(memory.get("v", 0), g * g, 0.95)
    grams = memory.get("grams", [0.0, 0.0])
    memory["grams"] = [
        mix(old, x @ x.T, 0.95) for old, x in zip(grams, rows_and_columns(g), strict=True)
    ]
    if t % 5 == 0:
        memory["roots"] = [inverse_fourth_root(x / (1 - 0.95**t), 1e-12) for x in memory["grams"]]
    mean = memory["m"] / (1 - 0.9**t)
    u = mean / ((memory["v"] / (1 - 0.95**t)).sqrt() + 1e-10)
    if t >= 5:
        direction = memory["roots"][0] @ mean @ memory["roots"][1]
        u = direction * (u.norm() / (direction.norm() + 1e-16))
    return p - options["lr"] * u - options["lr"] * options["weight_decay"] * p


def balance(x: Tensor) -> Tensor:
    """Scale rows and columns until the squares have equal sums, by ten Sinkhorn iterations."""
    squares, (m, n) = x.square() + 1e-8, x.shape
    c = torch.ones(n, dtype=x.dtype)
    for _ in range(10):
        r = (1.0 / m) / (squares @ c + 1e-8)
        c = (1.0 / n) / (squares.T @ r + 1e-8)
    return r.sqrt()[:, None] * x * c.sqrt()[None, :]


def sinksoap(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = nesterov(g, memory, 0.95)
    grams = memory.get("grams", [0.0, 0.0])
    memory["grams"] = grams = [
        mix(old, x @ x.T, 0.95) for old, x in zip(grams, rows_and_columns(g), strict=True)
    ]
    bases = [basis((x + x.T) / 2 + 1e-8 * torch.eye(len(x), dtype=x.dtype)) for x in grams]
    u = from_bases(balance(to_bases(u, bases)), bases)
    u = u * (min(p.shape) ** 0.5 * tall_factor(p) / u.norm().clamp(min=1e-8))
    if p.size(0) != p.size(1):
        axis = 1 if p.size(0) > p.size(1) else 0
        memory["even"] = mix(memory.get("even", 0), (u * u).mean(axis, keepdim=True), 0.95)
        even = u * (1.0 / memory["even"].sqrt().clamp(min=1e-10))
        u = even * (u.norm().clamp(min=1e-10) / even.norm().clamp(min=1e-10))
    return p * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * u


def streaming_power(gram: Tensor, key: str, call: int, memory: Values) -> Tensor:
    """Return a negative power of a covariance, by one power iteration of a basis."""
    size = len(gram)
    if key not in memory:
        draw = gaussian(gram, *(torch.tensor(float(n)) for n in (0, memory["index"], 1, call)))
        memory[key] = torch.linalg.qr(draw)[0]
    memory[key] = q = torch.linalg.qr(gram @ memory[key])[0]
    d = (q * (gram @ q)).sum(0).clamp(min=1e-6) ** -0.3
    return q @ d.diag() @ q.T * (size**0.5 / (d.norm() + 1e-6))


def pmuon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    """Take a step. The first bases are those that optgen draws for the matrix of this index."""
    u = nesterov(g, memory, 0.95)
    now = [x @ x.T for x in rows_and_columns(u)]
    grams = memory.get("grams", [0.0, 0.0])
    memory["grams"] = grams = [0.95 * old + x for old, x in zip(grams, now, strict=True)]
    left, right = (
        x + 0.95 * old + 1e-6 * torch.eye(len(x), dtype=x.dtype)
        for x, old in zip(now, grams, strict=True)
    )
    u = streaming_power(left, "left", 0, memory) @ u @ streaming_power(right, "right", 1, memory)
    update = tall_factor(p) * orthogonalize(u)
    return p * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * update


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


def newton_schulz_iterates(x: Tensor) -> list[Tensor]:
    """Return a matrix of Schatten norm 1, and the results of twelve Newton-Schulz iterations."""
    results = [x / schatten(x, 1e-7)]
    for _ in SOFTENING:
        last = results[-1]
        gram = last.T @ last
        results.append(2 * last - 1.5 * last @ gram + 0.5 * last @ gram @ gram)
    return results


def soap_direction(u: Tensor, memory: Values, value: bool) -> Tensor:
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


def soft_direction(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    """Return result 20's update before the floor."""
    u = nesterov(g, memory, 0.95)
    u = soap_direction(u, memory, options["value"]) if options["soap"] else u
    iterations = newton_schulz_iterates(u)
    polar, size = iterations[-1], schatten(iterations[-1])
    reduced = polar - options["contra"] * u / schatten(u)
    soft = sum((c * x for c, x in zip(SOFTENING, iterations, strict=False)), torch.zeros_like(u))
    share = options["soft"]
    mean = (1 - share) * reduced / schatten(reduced) + share * soft / schatten(soft)
    u = tall_factor(p) * size * mean / schatten(mean)
    update = equalize(u, memory)
    update = update * schatten(u) / schatten(update)
    if options["soap"]:
        update_bases(g, memory)
    return update


def soft_muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    return step_with_floor(p, soft_direction(p, g, memory, options), options["lr"], 0.3825)


def anchored_muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    """Pull the weights towards the first ones before the update is added."""
    first, count = memory.setdefault("first", p), memory.get("count", 0)
    memory["count"] = count + 1
    u = soft_direction(p, g, memory, options)
    share = options["pull"] / (count + 2)
    return step_with_floor(p, u, options["lr"], 0.3825) - share * (p - first)

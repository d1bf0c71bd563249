"""Steps of track 3's Muons on one matrix, written anew in plain torch from the logged scripts.

A step function takes a matrix, its gradient, its memory, and the options of its group in this step.
It returns the new matrix. The scripts orthogonalize in bfloat16; the functions here do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Values = dict[str, Any]
"""Values by name: those that a step keeps for the next one, or options."""


TRIPLES = ((2.0, -1.5, 0.5),) * 12
"""The coefficients of the scripts' Newton-Schulz iterations."""


def newton_schulz(x: Tensor, triples: Sequence[Sequence[float]] = TRIPLES) -> Tensor:
    """Drive singular values of at most 1 to 1 by twelve Newton-Schulz iterations."""
    for a, b, c in triples:
        x = a * x + b * x @ (x.T @ x) + c * x @ (x.T @ x) @ (x.T @ x)
    return x


def orthogonalize(x: Tensor) -> Tensor:
    """Drive the singular values of a matrix to 1."""
    return newton_schulz(x / (x.norm() + 1e-7))


def nesterov(g: Tensor, memory: Values, mu: float) -> Tensor:
    """Advance the momentum; return what it would be after the same gradient once more."""
    memory["m"] = mu * memory.get("m", 0) + (1 - mu) * g
    return (1 - mu) * g + mu * memory["m"]


def tall_factor(x: Tensor) -> float:
    """Return the factor of Muon's update, which is above 1 for more rows than columns."""
    return max(1.0, math.sqrt(x.size(0) / x.size(1)))


def muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = orthogonalize(nesterov(g, memory, 0.95))
    return p * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * tall_factor(p) * u


def spectral_descent(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = orthogonalize(g)
    return p * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * tall_factor(p) * u


def uncorrected_adam(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    beta1, beta2 = options["betas"]
    memory["m"] = beta1 * memory.get("m", 0) + (1 - beta1) * g
    memory["v"] = beta2 * memory.get("v", 0) + (1 - beta2) * g * g
    return p - options["lr"] * memory["m"] / (memory["v"].sqrt() + 1e-10)


def hyperball(p: Tensor, u: Tensor, lr: float) -> Tensor:
    """Step by `lr` times the norm of a matrix, and restore this norm."""
    moved = p - lr * p.norm() * u / u.norm().clamp(min=1e-10)
    return p.norm() * moved / moved.norm().clamp(min=1e-10)


def adamh(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    memory["t"] = t = memory.get("t", 0) + 1
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
    memory["v"] = 0.95 * memory.get("v", 0) + 0.05 * g * g
    root = (memory["v"] / (1 - 0.95**t)).sqrt()
    return hyperball(p, memory["m"] / (1 - 0.9**t) / (root + 1e-8), options["lr"])


def muonh(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    return hyperball(p, orthogonalize(nesterov(g, memory, 0.95)), options["lr"])


def muon_squared(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    memory["v"] = 0.95 * memory.get("v", 0) + 0.05 * g * g
    u = orthogonalize(nesterov(g, memory, 0.95) / (memory["v"].sqrt() + 1e-10))
    return p * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * tall_factor(p) * u


def equalize(u: Tensor, memory: Values) -> Tensor:
    """Divide each row of an update, or each column of a wide one, by its RMS so far."""
    axis = 1 if u.size(0) >= u.size(1) else 0
    mean = (u * u).mean(axis, keepdim=True)
    memory["even"] = 0.95 * memory.get("even", 0) + 0.05 * mean
    return u / memory["even"].clamp(min=1e-10).sqrt()


def equalize_and_keep_norm(u: Tensor, memory: Values) -> Tensor:
    update = equalize(u, memory)
    return update * (u.norm() / update.norm().clamp(min=1e-10))


def normuonh(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = tall_factor(p) * orthogonalize(nesterov(g, memory, 0.95))
    return hyperball(p, equalize(u, memory), options["lr"])


def normuon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = equalize_and_keep_norm(tall_factor(p) * orthogonalize(nesterov(g, memory, 0.95)), memory)
    return p * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * u


def step_with_floor(p: Tensor, u: Tensor, lr: float, target: float = 0.35) -> Tensor:
    """Take a step whose update has at least `target` times the norm of the matrix."""
    size, goal = u.norm().clamp(min=1e-8).item(), target * p.norm().clamp(min=1e-8).item()
    return p - lr * u * (goal / size if size < goal else 1.0)


def skylight(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = tall_factor(p) * orthogonalize(nesterov(g, memory, 0.95))
    return step_with_floor(p, equalize_and_keep_norm(u, memory), options["lr"])


def largest_singular_value(x: Tensor) -> Tensor:
    """Estimate the largest singular value by five power iterations, from a vector of ones."""
    v = torch.ones(x.size(1), dtype=x.dtype) / x.size(1) ** 0.5
    for _ in range(5):
        u = x @ v / (x @ v).norm().clamp(min=1e-10)
        v = x.T @ u / (x.T @ u).norm().clamp(min=1e-10)
    return (x @ v).norm().clamp(min=1e-10)


def contra(u: Tensor, orthogonalized: Tensor) -> Tensor:
    """Subtract a part of a momentum from its orthogonal matrix; restore the norm."""
    reduced = orthogonalized - 0.4 / 2 * u / largest_singular_value(u)
    return reduced * orthogonalized.norm() / reduced.norm().clamp(min=1e-10)


def contra_muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    u = nesterov(g, memory, 0.95)
    u = tall_factor(p) * contra(u, orthogonalize(u))
    return step_with_floor(p, equalize_and_keep_norm(u, memory), options["lr"])


def dynmuon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    mean = g / (8 * 64 * 1024)
    memory["m"] = 0.95 * memory.get("m", 0) + mean
    u = 0.95 * memory["m"] + mean
    x = u.T if u.size(0) > u.size(1) else u
    scale = x.norm() + 1e-7
    x = x / scale
    eye, delta = torch.eye(len(x), dtype=x.dtype), 0.5 * options["spectral_power"]
    difference = x @ x.T - eye
    series = eye + delta * difference
    series = series + 0.5 * delta * (delta - 1.0) * difference @ difference
    update = series @ orthogonalize(x) * scale ** options["spectral_power"]
    update = tall_factor(p) * (update.T if u.size(0) > u.size(1) else update)
    return p * (1 - options["lr"] * options["weight_decay"]) - options["lr"] * update


def newton_muon(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    n = p.size(1)
    covariance = memory.setdefault("covariance", 0.001 * torch.eye(n, dtype=p.dtype))
    if "inputs" in memory:
        new, means = memory.pop("inputs")
        memory["covariance"] = covariance = covariance + 0.05 * (new - covariance)
        memory["inverse"] = torch.zeros_like(covariance)
        for block in means.unique(dim=0):
            at = block.nonzero()[:, 0]
            part = covariance[at][:, at]
            damping = part.trace() / len(at) * 0.2 + 1e-8
            damped = part + damping * torch.eye(len(at), dtype=p.dtype)
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
            memory["inverse"][at[:, None], at] = inverse
    return muon(p, g @ memory["inverse"] if "inverse" in memory else g, memory, options)


POLAR_EXPRESS = (
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    *((1.8750, -1.2500, 0.3750),) * 5,
)


def muown(p: Tensor, g: Tensor, memory: Values, options: Values) -> Tensor:
    if "size" not in memory:
        norms = p.norm(dim=1, keepdim=True)
        memory["size"] = torch.where(norms <= 1e-12, torch.full_like(norms, 0.33**0.5), norms)
        memory |= {"first": memory["size"], "v_norm": memory["size"]}
        memory |= {"m": 0, "m_size": 0, "v_size": 0, "t": 0}
    memory["t"] = t = memory["t"] + 1
    size, lr = memory["size"], options["lr"]
    unit = p / size
    slope = (g * unit).sum(1, keepdim=True)
    gradient = size / memory["v_norm"] * (g - unit * slope)
    memory["m"] = 0.95 * memory["m"] + gradient
    u = gradient + 0.95 * memory["m"]
    update = newton_schulz(u / (u.norm() + 1e-7), POLAR_EXPRESS)
    v = unit * memory["v_norm"] - lr * 0.2 * max(p.shape) ** 0.5 * update
    memory["m_size"] = 0.9 * memory["m_size"] + (1 - 0.9) * slope
    memory["v_size"] = 0.95 * memory["v_size"] + (1 - 0.95) * slope**2
    root = (memory["v_size"] / (1 - 0.95**t)).sqrt() + 1e-8
    memory["size"] = size - lr * (memory["m_size"] / (1 - 0.9**t)) / root
    progress = min((t - 1) / (3165 - 1), 1.0) ** 1.2
    memory["v_norm"] = memory["first"] + progress * (options["last_norm"] - memory["first"])
    return memory["size"] * v / v.norm(dim=1, keepdim=True).clamp(min=1e-12)


def outer_nesterov(
    p: Tensor, memory: Values, step: int, lr: float, momentum: float, interval: int
) -> Tensor:
    """Take a Nesterov step every `interval` steps, from the weights after the last such step."""
    memory["steps"] = memory.get("steps", 0) + 1
    if memory["steps"] % interval > 0:
        return p
    delta = memory["start"] - p
    memory["outer"] = momentum * memory.get("outer", 0) + lr * delta
    memory["start"] = memory["start"] - momentum * memory["outer"] - lr * delta
    return memory["start"]


def extrapolate(p: Tensor, memory: Values, look_ahead: float) -> Tensor:
    """Return the weights after a step, extrapolated along the mean of their moves."""
    memory["move"] = 0.99 * memory.get("move", 0) + (1 - 0.99) * (p - memory["start"])
    memory["start"] = p
    return p + look_ahead * memory["move"]

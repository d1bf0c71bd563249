"""Functions of torch that are made of simpler ones, written out so that these are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def normalize(
    x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """Return a tensor divided by its norm along an axis."""
    norm: Tensor = x.norm(p, dim, keepdim=True)
    return x / norm.clamp_min(eps)


def cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine between two tensors along an axis."""
    norms: list[Tensor] = [each.norm(2, dim, keepdim=True).clamp_min(eps) for each in (x, y)]
    products: Tensor = (x * y).sum(dim, keepdim=True)
    return (products / (norms[0] * norms[1])).squeeze(dim)


def std_mean(x: Tensor, dim: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the standard deviation and the mean."""
    axes = tuple(range(x.ndim)) if dim is None else dim
    is_kept = options.get("keepdim", False)
    return x.std(dim=axes, **options), x.mean(dim=axes, keepdim=is_kept)


def mv(x: Tensor, vector: Tensor) -> Tensor:
    """Return the product of a matrix and a vector."""
    return (x * vector).sum(dim=1)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + exp(x)), a smooth maximum of x and 0."""
    scaled = x * beta
    soft = torch.log(torch.exp(torch.clamp(scaled, max=threshold)) + 1) / beta
    return torch.where(scaled > threshold, x, soft)


COMPOSITES: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (normalize, cosine_similarity, std_mean, mv, softplus)
}

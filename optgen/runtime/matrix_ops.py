"""Matrix words, done by torch and batched over equal shapes: no arithmetic element by element."""

from collections.abc import Sequence

import torch
from torch import Tensor


def orthogonalize(
    tensors: Sequence[Tensor], coefficients: Sequence[float], steps: float, eps: float
) -> list[Tensor]:
    """Drive the singular values of matrices towards 1, by Newton-Schulz iterations in bfloat16.

    Args:
        tensors: matrices along their last two axes, of any dtype; none is changed.
        coefficients: a, b, c of the odd polynomial a x + b x^3 + c x^5.
        steps: how many iterations.
        eps: the least norm that a matrix is divided by.

    Returns:
        A bfloat16 tensor for each, of the same shape: torch's Muon computes in bfloat16 too.
    """
    made: list[Tensor | None] = [None] * len(tensors)
    places: dict[torch.Size, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.shape, []).append(place)
    for alike in places.values():
        few = [tensors[place].bfloat16() for place in alike]
        batch = torch.stack(few) if len(few) > 1 else few[0].unsqueeze(0)
        for place, matrix in zip(alike, _iterated(batch, coefficients, steps, eps), strict=True):
            made[place] = matrix
    return [matrix for matrix in made if matrix is not None]


def _iterated(batch: Tensor, coefficients: Sequence[float], steps: float, eps: float) -> Tensor:
    a, b, c = coefficients
    shape = batch.shape
    x = batch.flatten(0, -3)
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(int(steps)):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).reshape(shape)

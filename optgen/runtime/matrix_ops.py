"""Matrices of a parameter, which are its last two axes: their sizes, and matrix ops by torch."""

from collections.abc import Sequence

import torch
from torch import Tensor


def orthogonalize(
    tensors: Sequence[Tensor], coefficients: Sequence[float], steps: float, eps: float
) -> list[Tensor]:
    """Drive the singular values of matrices towards 1, by Newton-Schulz iterations in bfloat16.

    Args:
        tensors: matrices in the last two axes, of any dtype; not changed.
        coefficients: a, b, c of the odd polynomial a x + b x^3 + c x^5; or three numbers for each
            iteration in turn. Later iterations use the last three numbers.
        steps: the number of iterations.
        eps: a lower bound of the norm by which a matrix is divided. A matrix of zeros stays so.

    Returns:
        A bfloat16 tensor of the same shape for each tensor; torch's Muon computes in bfloat16 too.
    """
    results: list[Tensor | None] = [None] * len(tensors)
    by_shape: dict[torch.Size, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_shape.setdefault(tensor.shape, []).append(index)
    for indices in by_shape.values():
        matrices = [tensors[index].bfloat16() for index in indices]
        stacked = torch.stack(matrices) if len(matrices) > 1 else matrices[0].unsqueeze(0)
        orthogonal = _newton_schulz(stacked, coefficients, steps, eps)
        for index, matrix in zip(indices, orthogonal, strict=True):
            results[index] = matrix
    return [matrix for matrix in results if matrix is not None]


def _newton_schulz(
    stacked: Tensor, coefficients: Sequence[float], steps: float, eps: float
) -> Tensor:
    """Run the iterations on matrices in the last two axes, transposed if they are tall."""
    shape = stacked.shape
    x = stacked.flatten(0, -3)
    is_tall = x.size(-2) > x.size(-1)
    x = x.mT if is_tall else x
    # In float64 no square of a bfloat16 underflows or overflows.
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float64)
    x = x / norm.clamp(min=max(eps, torch.finfo(x.dtype).tiny)).to(x.dtype)
    for iteration in range(int(steps)):
        first = min(3 * iteration, len(coefficients) - 3)
        a, b, c = coefficients[first : first + 3]
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).reshape(shape)


def rows(param: Tensor) -> int:
    """Return the number of rows of each matrix."""
    return param.size(-2) if param.dim() > 1 else 1


def cols(param: Tensor) -> int:
    """Return the number of columns of each matrix."""
    return param.size(-1) if param.dim() else 1

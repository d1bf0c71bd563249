"""Matrices of a parameter, which are its last two axes: their sizes, and matrix ops by torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from optgen.runtime import float32_products, newton_schulz
from optgen.runtime.torch_private import following, is_neg

_MANY_PRODUCTS = 128**3  # of numbers; for fewer, torch's product is taken without a look


def orthogonalize(
    tensors: Sequence[Tensor],
    coefficients: Sequence[float],
    steps: float,
    eps: float,
    divisor: str = "norm",
    dtype: str | float = "bfloat16",
) -> list[Tensor]:
    """Drive the singular values of matrices towards 1, by Newton-Schulz iterations.

    Args:
        tensors: matrices in the last two axes, of any dtype; not changed.
        coefficients: a, b, c of the odd polynomial a x + b x^3 + c x^5; or three numbers for each
            iteration in turn. Later iterations use the last three numbers.
        steps: the number of iterations.
        eps: a lower bound of the norm by which a matrix is divided. A matrix of zeros stays so.
        divisor: "norm"; "spectral", the root of the norm of x x'; or "none".
        dtype: that of the iterations, by its name or its machine epsilon; torch's Muon computes in
            bfloat16. "parameter" is the dtype of the tensors.

    Returns:
        A tensor of this dtype, with the same shape, for each tensor.
    """
    iterations = newton_schulz.Iterations(coefficients, int(steps), eps, divisor, _dtype(dtype))
    results: list[Tensor | None] = [None] * len(tensors)
    by_type: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_type.setdefault((tensor.shape, tensor.dtype), []).append(index)
    for indices in by_type.values():
        matrices = [tensors[index] for index in indices]
        for index, matrix in zip(indices, newton_schulz.iterate(matrices, iterations), strict=True):
            results[index] = matrix
    return [matrix for matrix in results if matrix is not None]


def _dtype(dtype: str | float) -> torch.dtype | None:
    """Return a dtype by its name or its machine epsilon; None for that of the operand."""
    if isinstance(dtype, str):
        named: torch.dtype | None = None if dtype == "parameter" else getattr(torch, dtype)
        return named
    return next(d for d in FLOATING_DTYPES if torch.finfo(d).eps == dtype)


FLOATING_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return `a @ b`. If b is a's transpose, only half is computed where this is faster."""
    if following() or not all(map(newton_schulz.is_plain_memory, (a, b))):
        return torch.matmul(a, b)
    if min(a.dim(), b.dim()) < 2 or a.numel() * b.size(-1) < _MANY_PRODUCTS:
        return torch.matmul(a, b)
    if _is_transpose(a, b):
        return newton_schulz.gram(a)
    return float32_products.product(a, b)


def _is_transpose(a: Tensor, b: Tensor) -> bool:
    """Tell whether b is a view of a's memory, with rows and columns swapped."""
    swapped = a.mT
    layouts = (b.shape, b.stride()) == (swapped.shape, swapped.stride())
    bits = (a.dtype, is_neg(a), a.is_conj()) == (b.dtype, is_neg(b), b.is_conj())
    return layouts and bits and a.data_ptr() == b.data_ptr()


def rows(param: Tensor) -> int:
    """Return the number of rows of each matrix."""
    return param.size(-2) if param.dim() > 1 else 1


def cols(param: Tensor) -> int:
    """Return the number of columns of each matrix."""
    return param.size(-1) if param.dim() else 1

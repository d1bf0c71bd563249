"""Define the meaning of ops on whole matrices, which are the last two axes of a tensor.

These functions call the same functions of torch as the lowerings do. So the evaluator and the
lowerings agree on the signs of eigenvectors and of orthonormal columns, which no definition fixes.
"""

from __future__ import annotations

from typing import Any

from torch import linalg

from optgen.contract.numbers import EIGENVALUE_ROUNDING, FORMATS

SMALLEST_NORM = FORMATS["bfloat16"].tiny
"""The smallest normal number of bfloat16, in which lowerings make matrices orthogonal."""


def orthogonalize(x: Any, coefficients: Any, steps: Any, eps: Any) -> Any:
    """Return x with its singular values driven towards 1, by steps of Newton-Schulz.

    The steps begin at x / maximum(norm(x), eps); zeros stay zeros. A step is an odd polynomial of
    degree 5. `coefficients` has three numbers for each step in turn, and all later steps use the
    last three.
    """
    is_tall = x.shape[-2] > x.shape[-1]
    y = x.mT if is_tall else x
    y = y / (y * y).sum((-2, -1), keepdim=True).sqrt().clamp(min=max(eps.item(), SMALLEST_NORM))
    for step in range(int(steps)):
        first_coefficient = min(3 * step, len(coefficients) - 3)
        a, b, c = coefficients[first_coefficient : first_coefficient + 3]
        gram = y @ y.mT
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return y.mT if is_tall else y


def identity(x: Any) -> Any:
    """Return the identity matrix in the shape of x."""
    return x.new_ones(x.shape[-1]).diag_embed().expand(x.shape)


def diag(x: Any) -> Any:
    """Return the diagonal, one number per row."""
    return x.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


def trace(x: Any) -> Any:
    """Return the sum of the diagonal, one number per matrix."""
    return diag(x).sum(-2, keepdim=True)


def qr(x: Any) -> Any:
    """Return the orthonormal factor of the QR decomposition."""
    return linalg.qr(x).Q


def eigenvectors(x: Any) -> Any:
    """Return the eigenvectors of a symmetric matrix as columns, by ascending eigenvalues."""
    return _eigh(x)[1]


def eigenvalues(x: Any) -> Any:
    """Return the eigenvalues of a symmetric matrix in ascending order, one number per row."""
    return _eigh(x)[0].unsqueeze(-1)


def singular_vectors(x: Any, rank: Any) -> Any:
    """Return the left singular vectors of the `rank` largest singular values, as columns.

    They are NaN for a matrix with elements that are not finite, where LAPACK would raise an error.
    """
    is_finite = x.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    vectors = linalg.svd(x.where(is_finite, 0.0), full_matrices=False).U[..., : int(rank)]
    return vectors.where(is_finite, float("nan"))


def descending(x: Any) -> Any:
    """Return the permutation matrix P for which P @ x has the numbers of x in descending order."""
    order = x.squeeze(-1).argsort(-1, descending=True)
    return x.new_ones(x.shape[-2]).diag_embed()[order]


def inverse_root(x: Any, n: Any, eps: Any, machine_eps: float = 2.0**-52) -> Any:
    """Return (x + eps I)^(-1/n) of a symmetric matrix; negative eigenvalues of x become 0.

    A lowering decomposes matrices in a dtype that has this `machine_eps`. It cannot tell small
    eigenvalues from 0. So all that are below `EIGENVALUE_ROUNDING * machine_eps` of the largest one
    become this share of it, and the root of a singular matrix is finite. If eps is 0, too, then the
    root of a matrix of zeros is 0.
    """
    values, vectors = _eigh(x)
    values = values.clamp(min=0.0) + eps
    least = values[..., -1:] * (EIGENVALUE_ROUNDING * machine_eps)
    roots = (values.maximum(least) ** (-1.0 / n)).where(values.maximum(least) != 0, 0.0)
    return (vectors * roots.unsqueeze(-2)) @ vectors.mT


def _eigh(x: Any) -> Any:
    """Return the eigenvalues and eigenvectors of a symmetric matrix.

    They are NaN for a matrix with elements that are not finite, where LAPACK would raise an error.
    """
    is_finite = x.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    values, vectors = linalg.eigh(x.where(is_finite, 0.0))
    return values.where(is_finite.squeeze(-1), float("nan")), vectors.where(is_finite, float("nan"))

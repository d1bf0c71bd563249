"""Linear algebra on whole matrices, for a tensor or for a list of tensors of one shape.

A list is one batch for torch: many small decompositions one by one would take much longer. A matrix
that has no decomposition, because an element is not finite, gives NaN instead of an error. So NaN
spreads through a step as in elementwise operations.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from optgen.contract.constants import EIGENVALUE_ROUNDING
from optgen.runtime import matrix_ops
from optgen.runtime.eager.tensor_lists import TensorList, batched, batched_results

Value = TypeVar("Value", Tensor, TensorList)


def transpose(x: Value) -> Value:
    """Swap rows and columns."""
    return _each(lambda tensor: tensor.mT, x)


def identity(x: Value) -> Value:
    """Return the identity matrix in the shape of x."""
    return _each(lambda tensor: tensor.new_ones(tensor.size(-1)).diag().expand(tensor.shape), x)


def row_ones(x: Value) -> Value:
    """Return ones, one number per row."""
    return _each(lambda tensor: tensor.new_ones([*tensor.shape[:-1], 1]), x)


def col_ones(x: Value) -> Value:
    """Return ones, one number per column."""
    return _each(lambda tensor: tensor.new_ones([*tensor.shape[:-2], 1, tensor.size(-1)]), x)


def lower(x: Value) -> Value:
    """Return the lower triangle, with the diagonal."""
    return _each(torch.tril, x)


def upper(x: Value) -> Value:
    """Return the upper triangle, with the diagonal."""
    return _each(torch.triu, x)


def diag(x: Value) -> Value:
    """Return the diagonal, one number per row."""
    return _each(lambda tensor: tensor.diagonal(dim1=-2, dim2=-1).unsqueeze(-1), x)


def trace(x: Value) -> Value:
    """Return the sum of the diagonal, one number per matrix."""
    return _each(lambda tensor: tensor.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None], x)


def qr(x: Value) -> Value:
    """Return the orthonormal factor of the QR decomposition."""
    return _batched(lambda tensor: torch.linalg.qr(tensor).Q, x)


def cholesky(x: Value) -> Value:
    """Return the lower triangle L with L L' = x; NaN if x is not positive definite."""
    return _batched(_cholesky, x)


def solve_triangular(triangle: Value, x: Value) -> Value:
    """Return y with l y = x, where l is the lower triangle; NaN if its diagonal has a zero."""
    return _batched_pair(lambda a, b: _solution(a.tril(), b, upper=False), triangle, x)


def solve_transposed(triangle: Value, x: Value) -> Value:
    """Return y with l' y = x, where l is the lower triangle; NaN if its diagonal has a zero."""
    return _batched_pair(lambda a, b: _solution(a.tril().mT, b, upper=True), triangle, x)


def eigenvectors(x: Value) -> Value:
    """Return the eigenvectors of a symmetric matrix as columns, by ascending eigenvalues."""
    return _batched(lambda tensor: _eigh(tensor)[1], x)


def eigenvalues(x: Value) -> Value:
    """Return the eigenvalues of a symmetric matrix in ascending order, one number per row."""
    return _batched(lambda tensor: _eigenvalues(tensor).unsqueeze(-1), x)


def eigh(x: Value) -> tuple[Value, Value]:
    """Return the eigenvalues and the eigenvectors of a symmetric matrix, by one decomposition."""

    def both(tensor: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = _eigh(tensor)
        return values.unsqueeze(-1), vectors

    if isinstance(x, Tensor):
        return both(x)
    values, vectors = batched_results(both, x)
    return values, vectors


def singular_vectors(x: Value, rank: float) -> Value:
    """Return the left singular vectors of the largest singular values, as columns."""
    return _batched(lambda tensor: _left_vectors(tensor)[..., : int(rank)], x)


def descending(x: Value) -> Value:
    """Return the permutation matrix P for which P @ x has the numbers of x in descending order."""
    return _each(_descending, x)


def descending_order(x: Value) -> Value:
    """Return the indices of the numbers of x, one number per row, in descending order."""
    return _each(lambda tensor: tensor.squeeze(-1).argsort(-1, descending=True), x)


def permuted_rows(x: Value, order: Value) -> Value:
    """Return the rows of a matrix in the given order."""
    return _each_pair(lambda tensor, index: _permuted(tensor, index, -2), x, order)


def permuted_columns(x: Value, order: Value) -> Value:
    """Return the columns of a matrix in the given order."""
    return _each_pair(lambda tensor, index: _permuted(tensor, index, -1), x, order)


def inverse_root(x: Value, n: float | Tensor, eps: float | Tensor) -> Value:
    """Return (x + eps I)^(-1/n) of a symmetric matrix; a negative eigenvalue of x is taken as 0.

    Rounding hides eigenvalues that are small beside the largest one: they count as
    `EIGENVALUE_ROUNDING` machine epsilons of it. The root of a matrix without positive eigenvalues
    is 0 if eps is 0.
    """

    def root(tensor: Tensor) -> Tensor:
        values, vectors = _eigh(tensor)
        values = values.clamp(min=0.0) + eps
        values = values.maximum(
            values[..., -1:] * (EIGENVALUE_ROUNDING * torch.finfo(values.dtype).eps)
        )
        roots = (values ** (-0.5 / n)).masked_fill(values == 0, 0.0)
        half = vectors * roots.unsqueeze(-2)
        return matrix_ops.product(half, half.mT)

    return _batched(root, x)


def newton_schulz(
    x: Value, coefficients: Sequence[float], steps: float, eps: float, *options: Any
) -> Value:
    """Drive the singular values towards 1, by Newton-Schulz iterations; return the dtype of x."""
    tensors = x.tensors if isinstance(x, TensorList) else [x]
    orthogonal = matrix_ops.orthogonalize(tensors, coefficients, steps, eps, *options)
    results = [new.to(old.dtype) for new, old in zip(orthogonal, tensors, strict=True)]
    return TensorList(results) if isinstance(x, TensorList) else results[0]


def _descending(x: Tensor) -> Tensor:
    return x.new_ones(x.size(-2)).diag()[descending_order(x)]


def _permuted(x: Tensor, order: Tensor, axis: int) -> Tensor:
    if order.dim() == 1:
        return x.index_select(axis, order)
    return x.take_along_dim(order.unsqueeze(-1 if axis == -2 else -2), axis)


def _each(function: Callable[[Tensor], Tensor], x: Value) -> Value:
    return TensorList(list(map(function, x.tensors))) if isinstance(x, TensorList) else function(x)


def _each_pair(function: Callable[[Tensor, Tensor], Tensor], x: Value, y: Value) -> Value:
    if isinstance(x, TensorList) and isinstance(y, TensorList):
        return TensorList(list(map(function, x.tensors, y.tensors)))
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    return function(x, y)


def _batched(function: Callable[[Tensor], Tensor], x: Value) -> Value:
    return batched(function, x) if isinstance(x, TensorList) else function(x)


def _batched_pair(function: Callable[[Tensor, Tensor], Tensor], x: Value, y: Value) -> Value:
    if isinstance(x, TensorList) and isinstance(y, TensorList):
        return batched(function, x, y)
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    return function(x, y)


def _cholesky(x: Tensor) -> Tensor:
    factor: Tensor
    factor, failures = torch.linalg.cholesky_ex(x)
    is_right = (failures == 0)[..., None, None] & _all_finite(x.tril())
    return factor.where(is_right, torch.nan)


def _solution(triangle: Tensor, x: Tensor, *, upper: bool) -> Tensor:
    has_zero = (triangle.diagonal(dim1=-2, dim2=-1) == 0).any(-1)[..., None, None]
    has_solution = _all_finite(triangle) & _all_finite(x) & ~has_zero
    solution: Tensor = torch.linalg.solve_triangular(triangle, x, upper=upper)
    return solution.where(has_solution, torch.nan)


def _all_finite(x: Tensor) -> Tensor:
    """Tell for each matrix whether all elements are finite."""
    return x.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)


def _left_vectors(x: Tensor) -> Tensor:
    """Return the left singular vectors; NaN for a matrix that has none."""
    try:
        vectors: Tensor = torch.linalg.svd(x, full_matrices=False).U
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if x.dim() == 2:
            return x.new_full((x.size(0), min(x.shape)), torch.nan)
        stacked = torch.stack([_left_vectors(matrix) for matrix in x.flatten(0, -3).unbind()])
        return stacked.reshape(*x.shape[:-2], *stacked.shape[-2:])
    return vectors


def _eigenvalues(x: Tensor) -> Tensor:
    """Return eigenvalues, which cost less without eigenvectors; NaN for a matrix that has none."""
    is_finite = _all_finite(x)
    try:
        values: Tensor = torch.linalg.eigvalsh(x.where(is_finite, 0.0))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return _eigh(x)[0]
    return values.where(is_finite.squeeze(-1), torch.nan)


def _eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors; NaN for a matrix that has none.

    LAPACK may return finite eigenvectors of a matrix with an infinite element.
    """
    is_finite = _all_finite(x)
    try:
        values, vectors = torch.linalg.eigh(x.where(is_finite, 0.0))
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if x.dim() == 2:
            return x.new_full(x.shape[-1:], torch.nan), torch.full_like(x, torch.nan)
        pairs = [_eigh(matrix) for matrix in x.flatten(0, -3).unbind()]
        values, vectors = (torch.stack(column) for column in zip(*pairs, strict=True))
        return values.reshape(x.shape[:-1]), vectors.reshape(x.shape)
    is_number = is_finite.squeeze(-1)
    return values.where(is_number, torch.nan), vectors.where(is_finite, torch.nan)

"""Define the meaning of each op on tensors, for the evaluator.

A meaning is computed by torch. So it holds for 0-dim tensors (scalars) and for tensors of any
shape, with torch's NaN, signed zero and infinity. Roots, and functions of scalars, have bits that
do not depend on the CPU, as torch's have. Ops on whole matrices call the same functions of torch as
the lowerings do. So the evaluator and the lowerings agree on the signs of eigenvectors and of
orthonormal columns, which no definition fixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import linalg

from optgen.contract.constants import EIGENVALUE_ROUNDING, FORMATS
from optgen.ir.random_numbers import gaussian, random, random16
from optgen.ir.rounding import rounded, rounded_at_random, rounded_down, rounded_up

SMALLEST_NORM = FORMATS["bfloat16"].tiny
"""The smallest normal number of bfloat16, in which lowerings make matrices orthogonal."""


def orthogonalize(
    x: Any, coefficients: Any, steps: Any, eps: Any, divisor: str = "norm", _dtype: Any = None
) -> Any:
    """Return x with its singular values driven towards 1, by steps of Newton-Schulz.

    The steps begin at x / maximum(norm(x), eps); zeros stay zeros. With the divisor "spectral", the
    root of norm(x x') stands for norm(x); with "none", they begin at x. A step is an odd polynomial
    of degree 5. `coefficients` has three numbers for each step in turn, and all later steps use the
    last three.
    """
    is_tall = x.shape[-2] > x.shape[-1]
    y = x.mT if is_tall else x
    if divisor != "none":
        norm = _norm_of_matrix(y)
        if divisor == "spectral":
            norm = norm * _norm_of_matrix((z := y / norm.clamp(min=SMALLEST_NORM)) @ z.mT).sqrt()
        y = y / norm.clamp(min=max(eps.item(), SMALLEST_NORM))
    for step in range(int(steps)):
        first_coefficient = min(3 * step, len(coefficients) - 3)
        a, b, c = coefficients[first_coefficient : first_coefficient + 3]
        gram = y @ y.mT
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return y.mT if is_tall else y


def _norm_of_matrix(x: Any) -> Any:
    return (x * x).sum((-2, -1), keepdim=True).sqrt()


def identity(x: Any) -> Any:
    """Return the identity matrix in the shape of x."""
    return x.new_ones(x.shape[-1]).diag_embed().expand(x.shape)


def row_ones(x: Any) -> Any:
    """Return ones, one number per row."""
    return x.new_ones((*x.shape[:-1], 1))


def col_ones(x: Any) -> Any:
    """Return ones, one number per column."""
    return x.new_ones((*x.shape[:-2], 1, x.shape[-1]))


def diag(x: Any) -> Any:
    """Return the diagonal, one number per row."""
    return x.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)


def trace(x: Any) -> Any:
    """Return the sum of the diagonal, one number per matrix."""
    return diag(x).sum(-2, keepdim=True)


def qr(x: Any) -> Any:
    """Return the orthonormal factor of the QR decomposition."""
    return linalg.qr(x).Q


def cholesky(x: Any) -> Any:
    """Return the lower triangle L with L L' = x; NaN if x is not positive definite or not finite.

    Only the lower triangle of x is read.
    """
    factor, failures = linalg.cholesky_ex(x)
    is_right = (failures == 0)[..., None, None] & _all_finite(x.tril())
    return factor.where(is_right, float("nan"))


def solve_triangular(l: Any, x: Any) -> Any:
    """Return y with l y = x for a lower triangle l.

    NaN if its diagonal has a zero, or if an element that is read is not finite.
    """
    return _solution(l.tril(), x, upper=False)


def solve_transposed(l: Any, x: Any) -> Any:
    """Return y with l' y = x for a lower triangle l; NaN as for `solve_triangular`."""
    return _solution(l.tril().mT, x, upper=True)


def _solution(triangle: Any, x: Any, *, upper: bool) -> Any:
    has_solution = _all_finite(triangle) & _all_finite(x) & (diag(triangle) != 0).all(-2, True)
    solution = linalg.solve_triangular(triangle, x, upper=upper)
    return solution.where(has_solution, float("nan"))


def _all_finite(x: Any) -> Any:
    """Tell for each matrix whether all elements are finite."""
    return x.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)


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
    is_finite = _all_finite(x)
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
    is_finite = _all_finite(x)
    values, vectors = linalg.eigh(x.where(is_finite, 0.0))
    return values.where(is_finite.squeeze(-1), float("nan")), vectors.where(is_finite, float("nan"))


def _sqrt(x: Any) -> Any:
    """Return the square root, correctly rounded; NaN below zero.

    On Intel CPUs `x.sqrt()` calls MKL, whose last bit is wrong for 0.7 % of numbers. The complex
    root of a positive number calls the C library, whose root is IEEE's.
    """
    root = x.sqrt()
    return x.to(torch.complex128).sqrt().real.to(x.dtype).where(x > 0, root) if x.is_cpu else root


def _of_scalars(on_floats: Callable[..., float], on_tensors: Callable[..., Any]) -> Any:
    """Return a function of tensors that computes scalars as Python does: by the C library.

    For scalars torch takes the functions of its vectors, whose last bits depend on the CPU.
    """

    def meaning(*operands: Any) -> Any:
        if all(operand.ndim == 0 and operand.is_floating_point() for operand in operands):
            try:
                number = on_floats(*(operand.item() for operand in operands))
                return torch.tensor(number, dtype=torch.float64).to(operands[0].dtype)
            except (ValueError, OverflowError):
                pass  # Python raises an error where IEEE 754 and torch have NaN or infinity
        return on_tensors(*operands)

    return meaning


_pow = _of_scalars(math.pow, lambda a, b: a ** (b if b.ndim else b.item()))


def _power(a: Any, b: Any) -> Any:
    """Return a power. As in torch, an exponent of 0.5 means the root, and -0.5 its inverse."""
    if b.ndim == 0 and abs(b.item()) == 0.5:
        root = _sqrt(a)
        return root if b > 0 else 1 / root
    return _pow(a, b)


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return x.clamp(low, high)


def _max_abs(x: Any) -> Any:
    """Return the largest magnitude; 0 for an empty tensor, NaN if any element is NaN."""
    return x.abs().amax() if x.numel() else x.new_zeros(())


def _row_max_abs(x: Any) -> Any:
    """Return the largest magnitude of every row; 0 for a row without elements."""
    return x.abs().amax(-1, keepdim=True) if x.size(-1) else x.sum(-1, keepdim=True)


def _col_max_abs(x: Any) -> Any:
    """Return the largest magnitude of every column; 0 for a column without elements."""
    return x.abs().amax(-2, keepdim=True) if x.size(-2) else x.sum(-2, keepdim=True)


def _sum_of_sorted(*numbers: Any) -> Any:
    """Return the sum of numbers. Sorting makes its bits independent of their order."""
    return torch.stack(numbers).sort().values.sum()


def _largest(*numbers: Any) -> Any:
    return torch.stack(numbers).amax()


MEANINGS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": _power,
    "%": lambda a, b: a % b,
    "neg": lambda a: -a,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "within": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: ~a,
    "sqrt": _sqrt,
    "exp": _of_scalars(math.exp, torch.exp),
    "log": _of_scalars(math.log, torch.log),
    "tanh": _of_scalars(math.tanh, torch.tanh),
    "sin": _of_scalars(math.sin, torch.sin),
    "cos": _of_scalars(math.cos, torch.cos),
    "atan2": _of_scalars(math.atan2, torch.atan2),
    "floor": lambda x: x.floor(),
    "ceil": lambda x: x.ceil(),
    "round": lambda x: x.round(),
    "abs": lambda x: x.abs(),
    "sign": lambda x: x.sign(),
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
    "where": lambda condition, a, b: a.where(condition, b),
    "clamp": _clamp,
    "lerp": _lerp,
    "rounded": rounded,
    "rounded_down": rounded_down,
    "rounded_up": rounded_up,
    "rounded_at_random": rounded_at_random,
    # The first argument is the positions of the elements.
    "random": random,
    "random16": random16,
    "truth": lambda x: x != 0,
    "item": lambda values, i: values[i],
    "is_none": lambda x: x is None,
    "copy": lambda x: x.clone(),
    # The evaluator receives the values of `fresh` and of properties, and these never run.
    "fresh": lambda x: x,
    "factored": lambda x: x,
    "tall": lambda x: x,
    "ndim": lambda x: x,
    "numel": lambda x: x,
    "rows": lambda x: x,
    "cols": lambda x: x,
    "machine_eps": lambda x: x,
    "row_sum": lambda x: x.sum(-1, keepdim=True),
    "col_sum": lambda x: x.sum(-2, keepdim=True),
    "row_mean": lambda x: x.mean(-1, keepdim=True),
    "col_mean": lambda x: x.mean(-2, keepdim=True),
    "row_norm": lambda x: _sqrt((x * x).sum(-1, True)),
    "col_norm": lambda x: _sqrt((x * x).sum(-2, True)),
    "row_rms": lambda x: _sqrt((x * x).mean(-1, True)),
    "col_rms": lambda x: _sqrt((x * x).mean(-2, True)),
    "row_max_abs": _row_max_abs,
    "col_max_abs": _col_max_abs,
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "norm": lambda x: _sqrt((x * x).sum()),
    "rms": lambda x: _sqrt((x * x).mean()),
    "max_abs": _max_abs,
    # A wide reduction takes the numbers of all the parameters.
    "group_sum": _sum_of_sorted,
    "group_max": _largest,
    "all_sum": _sum_of_sorted,
    "all_max": _largest,
    "orthogonalize": orthogonalize,
    "@": lambda a, b: a @ b,
    "transpose": lambda x: x.mT,
    "identity": identity,
    "row_ones": row_ones,
    "col_ones": col_ones,
    "lower": lambda x: x.tril(),
    "upper": lambda x: x.triu(),
    "diag": diag,
    "trace": trace,
    "qr": qr,
    "cholesky": cholesky,
    "solve_triangular": solve_triangular,
    "solve_transposed": solve_transposed,
    "eigenvectors": eigenvectors,
    "eigenvalues": eigenvalues,
    "descending": descending,
    "inverse_root": inverse_root,
    "singular_vectors": singular_vectors,
    "gaussian": gaussian,
}
"""The functions of tensors, by op."""

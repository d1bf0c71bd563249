"""The matrix ops of the language for bounded tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fuzz.bounded_tensors import BoundedTensor, lift, operand_bound, result_in_range
from optgen.contract.constants import EIGENVALUE_ROUNDING
from optgen.ir.meanings import MEANINGS
from optgen.ir.ops import LINEAR_ALGEBRA

PLAIN = {name: MEANINGS[name] for name in LINEAR_ALGEBRA}
"""The ops' meanings on plain tensors, without bounds."""


def _operand(x: Any) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return an operand's values, bounds and mask of comparable values, and its dtype's unit."""
    x = lift(x)
    e = operand_bound(x, x.eps) + torch.zeros_like(x.v)
    return x.v, e, x.ok.expand(x.v.shape), x.eps


def _all_comparable(ok: Tensor) -> Tensor:
    """Tell for each matrix of a batch whether all its elements are comparable."""
    return ok.all(-1, keepdim=True).all(-2, keepdim=True)


def _norm(x: Tensor) -> Tensor:
    return (x * x).sum((-2, -1), keepdim=True).sqrt()


def _product(a: Any, b: Any) -> BoundedTensor:
    """Return a product; a lowering may add its terms in any order."""
    (a, ea, a_ok, a_eps), (b, eb, b_ok, b_eps) = _operand(a), _operand(b)
    eps = max(a_eps, b_eps)
    e = ea @ b.abs() + a.abs() @ eb + ea @ eb + (a.shape[-1] + 2) * eps * (a.abs() @ b.abs())
    v = a @ b
    ok = a_ok.all(-1, keepdim=True) & b_ok.all(-2, keepdim=True)
    return result_in_range(v, e, ok.expand(v.shape), eps)


def _permuted(op: str, x: Any) -> BoundedTensor:
    """Return the result of an op that only moves elements."""
    x = lift(x)
    e, ok = x.e + torch.zeros_like(x.v), x.ok.expand(x.v.shape)
    return result_in_range(PLAIN[op](x.v), PLAIN[op](e), PLAIN[op](ok), x.eps)


def _triangle(op: str, x: Any) -> BoundedTensor:
    """Return a triangle; the zeros outside of it are exact."""
    x = lift(x)
    v, ok = PLAIN[op](x.v), x.ok.expand(x.v.shape)
    outside = PLAIN[op](torch.ones_like(v)) == 0
    return result_in_range(v, PLAIN[op](x.e + torch.zeros_like(v)), ok | outside, x.eps)


def _constant(op: str, x: Any) -> BoundedTensor:
    x = lift(x)
    v = PLAIN[op](x.v)
    return result_in_range(v, torch.zeros_like(v), torch.ones_like(v, dtype=torch.bool), x.eps)


def _trace(x: Any) -> BoundedTensor:
    v, e, ok, eps = _operand(x)
    bound = PLAIN["trace"](e) + v.shape[-1] * eps * PLAIN["trace"](v.abs())
    return result_in_range(PLAIN["trace"](v), bound, _all_comparable(PLAIN["diag"](ok)), eps)


def _symmetric_operand(x: Any) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return values, a bound on errors of eigenvalues, a mask of comparable matrices, and the unit.

    The decomposition reads one triangle of a matrix. So an error in it stands for two elements,
    which multiplies the norm of the errors by sqrt(2) at most. The factor 8 is generous.
    """
    v, e, ok, eps = _operand(x)
    return v, sqrt(2) * _norm(e) + 8 * v.shape[-1] * eps * _norm(v), _all_comparable(ok), eps


def _eigenvalues(x: Any) -> BoundedTensor:
    v, e, ok, eps = _symmetric_operand(x)
    result = PLAIN["eigenvalues"](v)
    return result_in_range(result, e.expand(result.shape), ok.expand(result.shape), eps)


def _cholesky(x: Any) -> BoundedTensor:
    """Return a factor, whose error is that of the matrix over its least eigenvalue (Sun, 1991)."""
    v, e, ok, eps = _symmetric_operand(x)
    result = PLAIN["cholesky"](v)
    least = PLAIN["eigenvalues"](v).amin((-2, -1), keepdim=True)
    bound = 2 * e * _norm(result) / least.clamp(min=1e-300)
    is_comparable = (ok & (2 * e < least)).expand(result.shape)
    return result_in_range(result, bound.expand(result.shape), is_comparable, eps)


def _solution(op: str, triangle: Any, x: Any) -> BoundedTensor:
    """Return a solution; its error is that of both matrices, times the inverse of the triangle."""
    (a, ea, a_ok, a_eps), (b, eb, b_ok, b_eps) = _operand(_triangle("lower", triangle)), _operand(x)
    result, inverse = PLAIN[op](a, b), PLAIN[op](a, PLAIN["identity"](a)).abs()
    eps = max(a_eps, b_eps)
    ea = ea + (a.shape[-1] + 2) * eps * a.abs()
    ea = ea.mT if op == "solve_transposed" else ea
    bound = 2 * inverse @ (ea @ result.abs() + eb)
    is_bounded = ((inverse @ ea).sum(-1, keepdim=True) < 0.5).all(-2, keepdim=True)
    ok = is_bounded & _all_comparable(a_ok) & _all_comparable(b_ok)
    return result_in_range(result, bound, ok.expand(result.shape), eps)


def _inverse_root(x: Any, n: Any, least: Any, machine_eps: float) -> BoundedTensor:
    """Return a root; its bound in the Frobenius norm uses the slope at the least eigenvalue."""
    v, e, ok, eps = _symmetric_operand(x)
    n, least = lift(n), lift(least)
    result = PLAIN["inverse_root"](v, n.v, least.v, machine_eps)
    largest = PLAIN["eigenvalues"](v).amax((-2, -1), keepdim=True)
    lowest = EIGENVALUE_ROUNDING * machine_eps * (largest + least.v - e)
    lowest = lowest.maximum(least.v - operand_bound(least, eps))
    slope = lowest ** (-1.0 / n.v - 1.0) / n.v.abs()
    bound = 2 * slope * (e + operand_bound(least, eps)) + 8 * v.shape[-1] * eps * _norm(result)
    bound = bound + 8 * eps * _norm(result) * (1 + lowest.log().abs())
    is_bounded = (lowest > 0) & (n.v > 0.1) & (n.e == 0)
    return result_in_range(
        result, bound.expand(result.shape), (ok & is_bounded).expand(result.shape), eps
    )


def _descending(x: Any) -> BoundedTensor:
    """Return a permutation; it is not comparable if two numbers are close."""
    v, e, ok, eps = _operand(x)
    result = PLAIN["descending"](v)
    ordered, _ = v.squeeze(-1).sort(-1)
    gap = (ordered.diff(dim=-1) > 2 * e.amax(-2)).all(-1)[..., None, None]
    return result_in_range(
        result, torch.zeros_like(result), (gap & _all_comparable(ok)).expand(result.shape), eps
    )


def _not_comparable(op: str, x: Any) -> BoundedTensor:
    """Return a decomposition. It is not comparable: a small change may turn it into another."""
    v = PLAIN[op](lift(x).v)
    return BoundedTensor(v, torch.zeros_like(v), torch.zeros_like(v, dtype=torch.bool), lift(x).eps)


def _singular_vectors(x: Any, rank: Any) -> BoundedTensor:
    """Return vectors. They are not comparable: a small change may turn them into others."""
    v = PLAIN["singular_vectors"](lift(x).v, lift(rank).v)
    return BoundedTensor(v, torch.zeros_like(v), torch.zeros_like(v, dtype=torch.bool), lift(x).eps)


def _gaussian(x: Any, *numbers: Any) -> BoundedTensor:
    """Return random numbers; they are not comparable if a number that seeds them is not."""
    eps, bounded = lift(x).eps, [lift(number) for number in numbers]
    v = PLAIN["gaussian"](lift(x).v, *(number.v for number in bounded))
    ok = torch.stack([number.ok for number in bounded]).all()
    return result_in_range(v, torch.full_like(v, 64 * eps), ok.expand(v.shape), eps)


MATRIX_MEANINGS: dict[str, Callable[..., Any]] = {
    "@": _product,
    "transpose": partial(_permuted, "transpose"),
    "diag": partial(_permuted, "diag"),
    **{op: partial(_constant, op) for op in ("identity", "row_ones", "col_ones")},
    **{op: partial(_triangle, op) for op in ("lower", "upper")},
    **{op: partial(_solution, op) for op in ("solve_triangular", "solve_transposed")},
    "cholesky": _cholesky,
    "trace": _trace,
    "eigenvalues": _eigenvalues,
    "inverse_root": _inverse_root,
    "descending": _descending,
    "eigenvectors": partial(_not_comparable, "eigenvectors"),
    "qr": partial(_not_comparable, "qr"),
    "singular_vectors": _singular_vectors,
    "gaussian": _gaussian,
}

"""Define the meaning of each op on tensors, for the evaluator.

A meaning is computed by torch. So it holds for 0-dim tensors (scalars) and for tensors of any
shape, with torch's NaN, signed zero and infinity. Roots, and functions of scalars, have bits that
do not depend on the CPU, as torch's have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from optgen.ir import linear_algebra
from optgen.ir.random_numbers import gaussian, random, random16
from optgen.ir.storage_rounding import rounded, rounded_at_random, rounded_down, rounded_up


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
    "orthogonalize": linear_algebra.orthogonalize,
    "@": lambda a, b: a @ b,
    "transpose": lambda x: x.mT,
    "identity": linear_algebra.identity,
    "diag": linear_algebra.diag,
    "trace": linear_algebra.trace,
    "qr": linear_algebra.qr,
    "eigenvectors": linear_algebra.eigenvectors,
    "eigenvalues": linear_algebra.eigenvalues,
    "descending": linear_algebra.descending,
    "inverse_root": linear_algebra.inverse_root,
    "singular_vectors": linear_algebra.singular_vectors,
    "gaussian": gaussian,
}
"""The functions of tensors, by op."""

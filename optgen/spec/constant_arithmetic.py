"""Arithmetic on the numbers of a spec, bounded: what float64 cannot hold is never computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from optgen.ir.nodes import Call, Const, Expr

_EXACT = 2**53
"""Whole numbers beyond it are not all numbers of float64, in which rules are computed."""

_LARGEST_POWER = 1000


def number(value: float) -> float:
    """Return a number as rules know it: finite, and whole only where float64 is exact.

    Raises:
        OverflowError: float64 does not hold it.
    """
    if isinstance(value, int) and abs(value) <= _EXACT:
        return value
    if (isinstance(value, int) and value.bit_length() > 1024) or not math.isfinite(value):
        raise OverflowError("it is not finite in float64")
    return float(value)


def _power(a: float, b: float) -> float:
    if abs(b) > _LARGEST_POWER:
        a, b = float(a), float(b)  # 10**10**10 has no end as a whole number
    result = a**b
    if isinstance(result, int | float):
        return result
    raise ValueError("the root of a negative number is none")


MEANING: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": _power,
    "%": operator.mod,
    "neg": operator.neg,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "abs": abs,
    "maximum": max,
    "minimum": min,
}
"""The words that make numbers of plain numbers, in Python."""


def compute(op: str, *values: float) -> float:
    """Return what a word makes of numbers.

    Raises:
        ArithmeticError, ValueError: it makes no number of them.
    """
    return number(MEANING[op](*values))


def value_of(expr: Expr) -> float | None:
    """Return the number that an expression of plain numbers is; None for any other.

    Raises:
        ArithmeticError, ValueError: it is no number that float64 holds.
    """
    match expr:
        case Const(int() | float() as value):
            return value
        case Call(op, args) if op in MEANING:
            values = [value_of(arg) for arg in args]
            known = [value for value in values if value is not None]
            return compute(op, *known) if len(known) == len(values) else None
    return None


def is_real(value: Any) -> bool:
    """Return whether a literal is a number (a truth value is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Compute with the numbers in a spec, within the range of float64."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any

from optgen.ir.evaluate_numbers import PYTHON_FUNCTIONS
from optgen.ir.nodes import Call, Const, Expr

OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.USub: "neg",
}
"""Python's operators that declarations may use, with the names of their ops."""

_LARGEST_EXACT_INT = 2**53
"""Float64, in which rules compute numbers, holds every whole number up to this magnitude."""

_MAX_FLOAT64_BITS = 1024
"""Float64 is finite below 2**1024."""


def constant_number(value: float) -> float:
    """Return a number as rules compute with it: an int up to 2**53, else a finite float.

    Raises:
        OverflowError: the number is not finite in float64.
    """
    if isinstance(value, int) and abs(value) <= _LARGEST_EXACT_INT:
        return value
    is_long = isinstance(value, int) and value.bit_length() > _MAX_FLOAT64_BITS
    if is_long or not math.isfinite(value):
        raise OverflowError("it is not finite in float64")
    return float(value)


def compute(op: str, *values: float) -> float:
    """Return the result of an op on numbers.

    Raises:
        ArithmeticError, ValueError: the result is not a finite real number.
    """
    return constant_number(PYTHON_FUNCTIONS[op](*values))


def value_of(expr: Expr) -> float | None:
    """Return the value of an expression made of constants, or None for any other expression.

    Raises:
        ArithmeticError, ValueError: the value is not a finite real number in float64.
    """
    match expr:
        case Const(int() | float() as value):
            return value
        case Call(op, args) if op in PYTHON_FUNCTIONS:
            values = [value_of(arg) for arg in args]
            numbers = [value for value in values if value is not None]
            return compute(op, *numbers) if len(numbers) == len(values) else None
    return None


def is_real(value: Any) -> bool:
    """Tell whether a literal is a number. True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)

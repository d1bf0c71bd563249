"""Prove that two scalar expressions add up to 1, with SymPy's polynomials over the rationals.

Names, and calls that are neither sums, products nor quotients, are the unknowns. Most pairs of
coefficients need no proof: `b` and `1 - b` add up to 1, and `1` and `-lr` do not at almost any
point. SymPy is imported for the others only, because that takes half a second.

A proof takes little time for any expression. The sizes of polynomials are limited before SymPy
computes with them, and a quotient is not reduced, because a greatest common divisor may take long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeGuard

from optgen.ir.nodes import Call, Const, Expr
from optgen.passes.linear_forms import ONE

_MAX_UNKNOWNS = 64
_MAX_TERMS = 64
_MAX_BITS = 4096
"""The largest length of a coefficient's numerator or denominator."""
_MAX_EXPONENT = 8
"""Larger powers are unknowns."""
_CLEAR_DIFFERENCE = 1e-3
"""More than the rounding errors of two coefficients that add up to 1."""


class _TooLargeError(Exception):
    """A polynomial has too many unknowns or terms, or a number that is too long."""


def sums_to_one(a: Expr, b: Expr) -> bool:
    """Tell whether two coefficients add up to 1 for all values of their names.

    False may also mean that the proof would be too long.
    """
    if _is_number(a) and _is_number(b):
        return _fraction(a) + _fraction(b) == 1
    if a == Call("-", (ONE, b)) or b == Call("-", (ONE, a)):
        return True
    unknowns: dict[Expr, float] = {}
    return not _differs_at_a_point(a, b, unknowns) and _is_proven(a, b, list(unknowns))


def _differs_at_a_point(a: Expr, b: Expr, point: dict[Expr, float]) -> bool:
    """Tell whether a sum is clearly not 1 at a point, and write the unknowns into this point."""

    def leaf(expr: Expr) -> float:
        if _is_number(expr):
            return float(_fraction(expr))
        # Multiples of 0.618 give each unknown another value between 0 and 1.
        return point.setdefault(expr, 0.618 * (len(point) + 1) % 1)

    try:
        total: float = _computed(a, leaf) + _computed(b, leaf)
        return abs(total - 1) > _CLEAR_DIFFERENCE
    except ArithmeticError:  # a divisor is 0, or a number is not finite: not to be used as a weight
        return True


def _is_proven(a: Expr, b: Expr, unknowns: list[Expr]) -> bool:
    """Tell whether SymPy proves that a sum is 1, within the limits."""
    from sympy import QQ, ring

    if len(unknowns) > _MAX_UNKNOWNS:
        return False
    polynomials, *generators = ring([f"x{i}" for i in range(len(unknowns))], QQ)
    unknown_as_polynomial = dict(zip(unknowns, generators, strict=True))

    def leaf(expr: Expr) -> _Quotient:
        if not _is_number(expr):
            return _Quotient(unknown_as_polynomial[expr], polynomials.one)
        number = _fraction(expr)
        constant = polynomials.ground_new(QQ(number.numerator, number.denominator))
        return _Quotient(constant, polynomials.one)

    try:
        total = _computed(a, leaf) + _computed(b, leaf)
    except _TooLargeError:
        return False
    return bool(total.divisor) and bool(total.dividend == total.divisor)


@dataclass(frozen=True)
class _Quotient:
    """One polynomial of SymPy divided by another."""

    dividend: Any
    divisor: Any

    def __add__(self, other: _Quotient) -> _Quotient:
        if self.divisor == other.divisor:
            return _Quotient(self.dividend + other.dividend, self.divisor)
        crosswise = _product(self.dividend, other.divisor), _product(other.dividend, self.divisor)
        return _Quotient(crosswise[0] + crosswise[1], _product(self.divisor, other.divisor))

    def __neg__(self) -> _Quotient:
        return _Quotient(-self.dividend, self.divisor)

    def __sub__(self, other: _Quotient) -> _Quotient:
        return self + -other

    def __mul__(self, other: _Quotient) -> _Quotient:
        dividend = _product(self.dividend, other.dividend)
        return _Quotient(dividend, _product(self.divisor, other.divisor))

    def __truediv__(self, other: _Quotient) -> _Quotient:
        return self * _Quotient(other.divisor, other.dividend)


def _product(a: Any, b: Any) -> Any:
    """Return the product of two polynomials; raise an error if one is too large to compute with."""
    for polynomial in (a, b):
        if len(polynomial) > _MAX_TERMS or any(
            max(abs(int(c.numerator)), int(c.denominator)).bit_length() > _MAX_BITS
            for c in polynomial.values()
        ):
            raise _TooLargeError
    return a * b


def _computed(expr: Expr, leaf: Callable[[Expr], Any]) -> Any:
    """Return the value of an expression; `leaf` returns those of numbers and unknowns."""

    def value(operand: Expr) -> Any:
        return _computed(operand, leaf)

    match expr:
        case Call("neg", (a,)):
            return -value(a)
        case Call("+", (a, b)):
            return value(a) + value(b)
        case Call("-", (a, b)):
            return value(a) - value(b)
        case Call("*", (a, b)):
            return value(a) * value(b)
        case Call("/" | "divide", (a, b)):
            return value(a) / value(b)
        case Call("**" | "power", (a, Const(int() as n))) if 0 < abs(n) <= _MAX_EXPONENT:
            power = base = value(a)
            for _ in range(abs(n) - 1):
                power = power * base
            return power if n > 0 else leaf(ONE) / power
    return leaf(expr)


def _is_number(expr: Expr) -> TypeGuard[Const]:
    """Tell whether an expression is a finite number."""
    match expr:
        case Const(bool()):
            return False
        case Const(int() | float() as value):
            return math.isfinite(value)
    return False


def _fraction(number: Const) -> Fraction:
    """Return a number as the fraction of its decimal text in the spec."""
    return Fraction(str(number.value))

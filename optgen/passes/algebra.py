"""Prove that two scalar expressions add up to 1, by exact arithmetic on quotients of polynomials.

Names, and calls that are neither sums, products nor quotients, are the unknowns. A proof takes
little time for any expression: one with too many terms or too long numbers is not proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from optgen.ir.nodes import Call, Const, Expr

Monomial = frozenset[tuple[Expr, int]]
"""A product of unknowns, each with its exponent."""

Polynomial = Mapping[Monomial, Fraction]
"""A sum of monomials, each with its coefficient, which is not 0."""

_MAX_TERMS = 64
_MAX_BITS = 4096
"""The largest length of a coefficient's numerator or denominator."""
_MAX_EXPONENT = 8
"""Larger powers are unknowns."""
_ONE: Polynomial = {frozenset(): Fraction(1)}


class _TooLargeError(Exception):
    """A polynomial has too many terms, or a number that is too long."""


def sums_to_one(a: Expr, b: Expr) -> bool:
    """Tell whether two coefficients add up to 1 for all values of their names.

    False may also mean that the proof would be too long.
    """
    try:
        total = _quotient(a).plus(_quotient(b))
        return bool(total.divisor) and total.dividend == total.divisor
    except _TooLargeError:
        return False


@dataclass(frozen=True)
class _Quotient:
    """One polynomial divided by another."""

    dividend: Polynomial
    divisor: Polynomial

    def plus(self, other: _Quotient) -> _Quotient:
        if self.divisor == other.divisor:
            return _Quotient(_sum(self.dividend, other.dividend), self.divisor)
        crosswise = _product(self.dividend, other.divisor), _product(other.dividend, self.divisor)
        return _Quotient(_sum(*crosswise), _product(self.divisor, other.divisor))

    def times(self, other: _Quotient) -> _Quotient:
        dividend = _product(self.dividend, other.dividend)
        return _Quotient(dividend, _product(self.divisor, other.divisor))

    def inverse(self) -> _Quotient:
        return _Quotient(self.divisor, self.dividend)


def _quotient(expr: Expr) -> _Quotient:
    """Return an expression as a quotient. Numbers are fractions of the decimal text in the spec."""
    match expr:
        case Const(int() | float() as value) if not isinstance(value, bool) and math.isfinite(
            value
        ):
            return _Quotient(_sum({frozenset(): Fraction(str(value))}), _ONE)
        case Call("neg", (a,)):
            return _quotient(Const(-1)).times(_quotient(a))
        case Call("+", (a, b)):
            return _quotient(a).plus(_quotient(b))
        case Call("-", (a, b)):
            return _quotient(a).plus(_quotient(Call("neg", (b,))))
        case Call("*", (a, b)):
            return _quotient(a).times(_quotient(b))
        case Call("/" | "divide", (a, b)):
            return _quotient(a).times(_quotient(b).inverse())
        case Call("**" | "power", (a, Const(int() as n))) if 0 < abs(n) <= _MAX_EXPONENT:
            power = base = _quotient(a)
            for _ in range(abs(n) - 1):
                power = power.times(base)
            return power if n > 0 else power.inverse()
    return _Quotient({frozenset({(expr, 1)}): Fraction(1)}, _ONE)


def _sum(*polynomials: Polynomial) -> Polynomial:
    terms: dict[Monomial, Fraction] = {}
    for polynomial in polynomials:
        for monomial, coefficient in polynomial.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + coefficient
    return _limited({m: c for m, c in terms.items() if c})


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    return _sum(*({_joined(m, n): c * d} for m, c in a.items() for n, d in b.items()))


def _joined(a: Monomial, b: Monomial) -> Monomial:
    """Return the product of two monomials."""
    exponents = dict(a)
    for unknown, exponent in b:
        exponents[unknown] = exponents.get(unknown, 0) + exponent
    return frozenset(exponents.items())


def _limited(polynomial: Polynomial) -> Polynomial:
    """Return a polynomial; raise an error if it is too large to compute with."""
    bits = (max(abs(c.numerator), c.denominator).bit_length() for c in polynomial.values())
    if len(polynomial) > _MAX_TERMS or max(bits, default=0) > _MAX_BITS:
        raise _TooLargeError
    return polynomial

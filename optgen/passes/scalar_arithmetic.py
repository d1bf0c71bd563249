"""Add, multiply and divide scalar expressions symbolically: coefficients of linear forms.

A product or quotient is kept as one fraction, with its sign in front and its operands in the
author's order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeGuard

from optgen.ir.evaluate_numbers import evaluate_numbers
from optgen.ir.nodes import Call, Const, Expr

ONE = Const(1)


def is_number(expr: Expr, value: float) -> TypeGuard[Const]:
    """Tell whether an expression is the literal `value`."""
    return isinstance(expr, Const) and expr.value == value and not isinstance(expr.value, bool)


def negate(a: Expr) -> Expr:
    """Return -a, without a double negation."""
    match a:
        case Call("neg", (inner,)):
            return inner
        case Const(int() | float() as value):
            return Const(-value)
        case _:
            return Call("neg", (a,))


def split_sign(a: Expr) -> tuple[bool, Expr]:
    """Return whether an expression starts with a minus, and the expression without this minus."""
    match a:
        case Call("neg", (inner,)):
            return True, inner
        case Const(int() | float() as value) if value < 0:
            return True, Const(-value)
        case _:
            return False, a


def multiply(a: Expr, b: Expr) -> Expr:
    """Return a * b as one fraction."""
    is_a_negative, a = split_sign(a)
    is_b_negative, b = split_sign(b)
    (numer_a, denom_a), (numer_b, denom_b) = _fraction(a), _fraction(b)
    product = _quotient(_product(numer_a, numer_b), _product(denom_a, denom_b))
    return negate(product) if is_a_negative != is_b_negative else product


def divide(a: Expr, b: Expr) -> Expr:
    """Return a / b as one fraction."""
    is_negative, b = split_sign(b)
    numer, denom = _fraction(b)
    result = multiply(a, _quotient(denom, numer))
    return negate(result) if is_negative else result


def add(a: Expr, b: Expr) -> Expr:
    """Return a + b."""
    is_negative, magnitude = split_sign(b)
    if is_number(a, 0):
        return b
    if is_number(b, 0):
        return a
    if isinstance(a, Const) and isinstance(b, Const):
        return _folded(operator.add, a, b)
    return Call("-", (a, magnitude)) if is_negative else Call("+", (a, b))


def root(a: Expr) -> Expr:
    """Return the square root of a provably nonnegative fraction, as a fraction of roots."""
    numer, denom = _fraction(a)
    return _quotient(_root(numer), _root(denom))


def _root(a: Expr) -> Expr:
    return a if is_number(a, 1) else Call("sqrt", (a,))


def _fraction(a: Expr) -> tuple[Expr, Expr]:
    """Return the numerator and the denominator of an expression."""
    match a:
        case Call("/", (numer, denom)):
            return numer, denom
        case _:
            return a, ONE


def _product(a: Expr, b: Expr) -> Expr:
    if is_number(a, 1):
        return b
    if isinstance(a, Const) and isinstance(b, Const):
        return _folded(operator.mul, a, b)
    return a if is_number(b, 1) else Call("*", (a, b))


def _folded(operation: Callable[[Any, Any], Any], a: Const, b: Const) -> Const:
    """Return the result of an operation on two literals as a literal."""
    return Const(operation(a.value, b.value), a.place)


def _quotient(numer: Expr, denom: Expr) -> Expr:
    match numer, denom:
        case _, _ if is_number(denom, 1):
            return numer
        case Const(int() | float() as a), Const(int() | float() as b) if b == 0:
            return Const(evaluate_numbers("/", (a, b)), numer.place)
    return Call("/", (numer, denom))

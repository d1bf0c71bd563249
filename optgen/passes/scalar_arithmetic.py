"""Arithmetic on scalar expressions: the coefficient field of the linear form.

Products and quotients are kept as one fraction with its sign in front, in the author's order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeGuard

from optgen.ir.evaluate import of_numbers
from optgen.ir.nodes import Call, Const, Expr

ONE = Const(1)


def is_number(expr: Expr, value: float) -> TypeGuard[Const]:
    """Whether an expression is that literal."""
    return isinstance(expr, Const) and expr.value == value and not isinstance(expr.value, bool)


def negate(a: Expr) -> Expr:
    """-a, with a double negation undone."""
    match a:
        case Call("neg", (inner,)):
            return inner
        case Const(int() | float() as value):
            return Const(-value)
        case _:
            return Call("neg", (a,))


def unsigned(a: Expr) -> tuple[bool, Expr]:
    """Whether a minus stands in front, and the rest."""
    match a:
        case Call("neg", (inner,)):
            return True, inner
        case Const(int() | float() as value) if value < 0:
            return True, Const(-value)
        case _:
            return False, a


def multiply(a: Expr, b: Expr) -> Expr:
    """a * b as one fraction."""
    minus_a, a = unsigned(a)
    minus_b, b = unsigned(b)
    (above_a, below_a), (above_b, below_b) = _fraction(a), _fraction(b)
    product = _over(_product(above_a, above_b), _product(below_a, below_b))
    return negate(product) if minus_a != minus_b else product


def divide(a: Expr, b: Expr) -> Expr:
    """a / b as one fraction."""
    minus, b = unsigned(b)
    above, below = _fraction(b)
    result = multiply(a, _over(below, above))
    return negate(result) if minus else result


def add(a: Expr, b: Expr) -> Expr:
    """a + b."""
    minus, rest = unsigned(b)
    if is_number(a, 0):
        return b
    if is_number(b, 0):
        return a
    if isinstance(a, Const) and isinstance(b, Const):
        return _folded(operator.add, a, b)
    return Call("-", (a, rest)) if minus else Call("+", (a, b))


def root(a: Expr) -> Expr:
    """The square root, term by term of a fraction; for a provably >= 0."""
    above, below = _fraction(a)
    return _over(_root(above), _root(below))


def _root(a: Expr) -> Expr:
    return a if is_number(a, 1) else Call("sqrt", (a,))


def _fraction(a: Expr) -> tuple[Expr, Expr]:
    match a:
        case Call("/", (above, below)):
            return above, below
        case _:
            return a, ONE


def _product(a: Expr, b: Expr) -> Expr:
    if is_number(a, 1):
        return b
    if isinstance(a, Const) and isinstance(b, Const):
        return _folded(operator.mul, a, b)
    return a if is_number(b, 1) else Call("*", (a, b))


def _folded(operation: Callable[[Any, Any], Any], a: Const, b: Const) -> Const:
    """Two numbers the author wrote, as the one they make."""
    return Const(operation(a.value, b.value), a.place)


def _over(above: Expr, below: Expr) -> Expr:
    match above, below:
        case _, _ if is_number(below, 1):
            return above
        case Const(int() | float() as a), Const(int() | float() as b) if b == 0:
            return Const(of_numbers("/", (a, b)), above.place)
    return Call("/", (above, below))

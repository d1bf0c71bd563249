"""Convert tensor expressions to linear forms: sums of terms `coefficient * tensors / tensors`.

All ops but + - * / and squares are opaque. Like terms are collected, so `p - lr * w * p` becomes
`(1 - lr * w) * p`. A scalar is moved out of a square root only if it is provably nonnegative. A sum
that is to be computed as written is also opaque: it becomes one factor, a linear form of two terms.

Coefficients are scalar expressions. A product or quotient of them is kept as one fraction, with its
sign in front and its operands in the author's order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeGuard, cast

from optgen.ir.evaluate_numbers import evaluate_numbers
from optgen.ir.nodes import Call, Const, Expr, Linear, Ref, Term, rebuild
from optgen.passes.ranges import Ranges, is_not_negative

Terms = tuple[Term, ...]


@dataclass(frozen=True)
class Linearizer:
    """Converter of tensor expressions to linear forms.

    `is_tensor` tells whether an expression is a tensor. `expand` returns the terms of a name that
    is to be inlined, or None. `as_written` tells whether a sum is to be computed as written.
    """

    is_tensor: Callable[[Expr], bool]
    expand: Callable[[Ref], Terms | None]
    ranges: Ranges
    as_written: Callable[[Expr], bool] = lambda expr: False

    def linear(self, expr: Expr) -> Linear:
        """Return the linear form of a tensor expression."""
        terms = self.terms(expr)
        match terms:
            case (Term(Const(1), (Linear(inner),), ()),):
                terms = inner
        return Linear(terms, expr.place)

    def terms(self, expr: Expr) -> Terms:
        """Return the terms of an expression, with like terms collected, in order of appearance."""
        if not self.is_tensor(expr):
            return (Term(expr),)
        match expr:
            case Ref():
                return self.expand(expr) or (Term(ONE, (expr,)),)
            case Linear(terms):
                return terms
            case Call("neg", (a,)):
                return _map_coefficients(self.terms(a), negate)
            case Call("+" | "-" as sign, (a, b)) if self.as_written(expr):
                right = _single(self.terms(b))
                minus = replace(right, coefficient=negate(right.coefficient))
                two_terms = (_single(self.terms(a)), right if sign == "+" else minus)
                collected = _collect(two_terms)
                # Multiples of one tensor are collected even here.
                return collected if len(collected) == 1 else (Term(ONE, (Linear(two_terms),)),)
            case Call("+", (a, b)):
                return _collect((*self.terms(a), *self.terms(b)))
            case Call("-", (a, b)):
                return _collect((*self.terms(a), *_map_coefficients(self.terms(b), negate)))
            case Call("*", (a, b)):
                return self._product(self.terms(a), self.terms(b))
            case Call("/", (a, b)):
                return self._quotient(self.terms(a), self.terms(b))
            case Call("**", (a, Const(2))):
                return self._product(self.terms(a), self.terms(a))
            case Call("sqrt", (a,)):
                return (self._root(self.terms(a)),)
            case _:
                return (Term(ONE, (rebuild(expr, self._operand),)),)

    def _operand(self, expr: Expr) -> Expr:
        """Return an operand of an opaque op with its tensors in linear form."""
        return _as_factor(self.terms(expr)) if self.is_tensor(expr) else expr

    def _product(self, a: Terms, b: Terms) -> Terms:
        if _is_scalar(a):
            return _map_coefficients(b, lambda c: multiply(a[0].coefficient, c))
        if _is_scalar(b):
            return _map_coefficients(a, lambda c: multiply(c, b[0].coefficient))
        left, right = _single(a), _single(b)
        return (
            Term(
                multiply(left.coefficient, right.coefficient),
                (*left.factors, *right.factors),
                (*left.divisors, *right.divisors),
            ),
        )

    def _quotient(self, a: Terms, b: Terms) -> Terms:
        divisor = _single(b)
        return tuple(
            replace(
                t,
                coefficient=divide(t.coefficient, divisor.coefficient),
                factors=(*t.factors, *divisor.divisors),
                divisors=(*t.divisors, *divisor.factors),
            )
            for t in a
        )

    def _root(self, terms: Terms) -> Term:
        term = _single(terms)
        if is_number(term.coefficient, 1) or not is_not_negative(term.coefficient, self.ranges):
            return Term(ONE, (Call("sqrt", (_as_factor(terms),)),))
        inside = _as_factor((replace(term, coefficient=ONE),))
        return Term(root(term.coefficient), (Call("sqrt", (inside,)),))


def _is_scalar(terms: Terms) -> bool:
    return len(terms) == 1 and not terms[0].factors and not terms[0].divisors


def _single(terms: Terms) -> Term:
    """Return a sum as one term; a sum of several terms becomes one opaque factor."""
    return terms[0] if len(terms) == 1 else Term(ONE, (Linear(terms),))


def _as_factor(terms: Terms) -> Expr:
    """Return terms as one expression: a bare factor as itself, else a linear form."""
    match terms:
        case (Term(coefficient, (factor,), ()),) if is_number(coefficient, 1):
            return factor
    return Linear(terms)


def _map_coefficients(terms: Terms, change: Callable[[Expr], Expr]) -> Terms:
    return tuple(replace(t, coefficient=change(t.coefficient)) for t in terms)


def _collect(terms: Terms) -> Terms:
    """Add up the coefficients of like terms.

    A tensor that cancels stays, times 0, because its NaN and infinite elements must not vanish.
    """
    sums: dict[tuple[tuple[Expr, ...], tuple[Expr, ...]], Expr] = {}
    for term in terms:
        key = (term.factors, term.divisors)
        sums[key] = add(sums[key], term.coefficient) if key in sums else term.coefficient
    collected = (Term(c, *key) for key, c in sums.items())
    return tuple(t for t in collected if t.factors or t.divisors or not is_number(t.coefficient, 0))


def lerp_terms(lerp: Call, is_tensor: Callable[[Expr], bool]) -> Linear:
    """Return a lerp as a sum of terms: start + weight * (end - start)."""
    start, end, weight = lerp.args
    start_term, end_term = (Term(ONE, (e,)) if is_tensor(e) else Term(e) for e in (start, end))
    difference = Linear((end_term, replace(start_term, coefficient=negate(start_term.coefficient))))
    change = Term(ONE, (weight, difference)) if is_tensor(weight) else Term(weight, (difference,))
    return Linear((start_term, change))


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
    product = _quotient(_scalar_product(numer_a, numer_b), _scalar_product(denom_a, denom_b))
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
        return Const(cast("float", a.value) + cast("float", b.value), a.place)
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


def _scalar_product(a: Expr, b: Expr) -> Expr:
    if is_number(a, 1):
        return b
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(cast("float", a.value) * cast("float", b.value), a.place)
    return a if is_number(b, 1) else Call("*", (a, b))


def _quotient(numer: Expr, denom: Expr) -> Expr:
    match numer, denom:
        case _, _ if is_number(denom, 1):
            return numer
        case Const(int() | float() as a), Const(int() | float() as b) if b == 0:
            return Const(evaluate_numbers("/", (a, b)), numer.place)
    return Call("/", (numer, denom))

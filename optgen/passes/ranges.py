"""What signs a scalar can take: interval arithmetic from the bounds of the hyperparameters.

It answers one question, whether a number is provably >= 0: what it takes to move it through
a square root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Const, Expr, Ref


@dataclass(frozen=True)
class Range:
    """Every value lies in [low, high]."""

    low: float = -inf
    high: float = inf

    def union(self, other: Range) -> Range:
        """An interval that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


ANYTHING = Range()
NOT_NEGATIVE = Range(0.0)
Ranges = Mapping[Ref, Range]


def declared_ranges(algorithm: Algorithm) -> dict[Ref, Range]:
    """The ranges of what the signature declares: hyperparameters by their bounds, t from 1 on."""
    ranges = {}
    for hyper in algorithm.hypers:
        low = hyper.bounds.ge if hyper.bounds.ge is not None else hyper.bounds.gt
        high = hyper.bounds.le if hyper.bounds.le is not None else hyper.bounds.lt
        ranges[Ref(hyper.name)] = Range(-inf if low is None else low, inf if high is None else high)
    if algorithm.step:
        ranges[Ref(algorithm.step)] = Range(1.0)
    return ranges


def range_of(expr: Expr, ranges: Ranges) -> Range:
    """An interval that holds every value of a scalar expression."""
    match expr:
        case Const(int() | float() as value):
            return Range(value, value)
        case Ref():
            return ranges.get(expr, ANYTHING)
        case Call("item", (values, _)):
            return range_of(values, ranges)
        case Call("neg", (a,)):
            inner = range_of(a, ranges)
            return Range(-inner.high, -inner.low)
        case Call("sqrt" | "exp" | "abs", _):
            return NOT_NEGATIVE
        case Call("+" | "-" | "*" | "/" | "**" as word, (a, b)):
            return _arithmetic(word, range_of(a, ranges), range_of(b, ranges))
        case _:
            return ANYTHING


def _arithmetic(word: str, a: Range, b: Range) -> Range:
    match word:
        case "+":
            return _between(a.low + b.low, a.high + b.high)
        case "-":
            return _between(a.low - b.high, a.high - b.low)
        case "**" if a.low >= 0:
            return Range(0.0, 1.0 if a.high <= 1 and b.low >= 0 else inf)
        case "*" | "/" if a.low >= 0 and b.low >= 0:
            return NOT_NEGATIVE
        case _:
            return ANYTHING


def _between(low: float, high: float) -> Range:
    """The interval; an end that is inf - inf is unknown."""
    return Range(-inf if isnan(low) else low, inf if isnan(high) else high)


def is_not_negative(expr: Expr, ranges: Ranges) -> bool:
    """Whether a scalar is provably >= 0."""
    return range_of(expr, ranges).low >= 0

"""Compute ranges of values by interval arithmetic, from the bounds of the hyperparameters.

The ranges prove which values are nonnegative and may be moved out of a square root, and which
scalar operators cannot raise in Python. Induction over steps proves which states, such as a second
moment, are never negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.evaluate_numbers import evaluate_numbers
from optgen.ir.nodes import Call, Const, Expr, Linear, Program, Ref, Term, assigns


@dataclass(frozen=True)
class Range:
    """Interval [low, high]."""

    low: float = -inf
    high: float = inf

    def union(self, other: Range) -> Range:
        """Return an interval that contains both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


ANYTHING = Range()
NOT_NEGATIVE = Range(0.0)
Ranges = Mapping[Ref, Range]
_NONNEGATIVE_WORDS = {"sqrt", "exp", "abs"} | {
    f"{axis}{word}" for axis in ("", "row_", "col_") for word in ("norm", "rms", "max_abs")
}


def declared_ranges(algorithm: Algorithm) -> dict[Ref, Range]:
    """Return the ranges of declared names: hyperparameters' bounds; [1, inf] for the step count."""
    ranges = {}
    for hyper in algorithm.hypers:
        low = hyper.bounds.ge if hyper.bounds.ge is not None else hyper.bounds.gt
        high = hyper.bounds.le if hyper.bounds.le is not None else hyper.bounds.lt
        ranges[Ref(hyper.name)] = Range(-inf if low is None else low, inf if high is None else high)
    if algorithm.step:
        ranges[Ref(algorithm.step)] = Range(1.0)
    return ranges


def range_of(expr: Expr, ranges: Ranges) -> Range:
    """Return an interval that contains the value; for a tensor, all its elements."""
    match expr:
        case Const(int() | float() as value):
            return Range(value, value)
        case Ref():
            return ranges.get(expr, ANYTHING)
        case Call("item", (values, _)):
            return range_of(values, ranges)
        case Call("neg", (a,)):
            inner = range_of(a, ranges)
            return Range(_negative_if_zero(-inner.high), -inner.low)
        case Call(word, _) if word in _NONNEGATIVE_WORDS:
            return NOT_NEGATIVE
        case Call("tanh" | "floor" | "ceil" | "round" as word, (a,)):  # monotonic
            inner = range_of(a, ranges)
            low, high = (evaluate_numbers(word, [end]) for end in (inner.low, inner.high))
            return Range(_negative_if_zero(low) if inner.low < 0 else low, high)
        case Call("sin" | "cos", _):
            return Range(-1.0, 1.0)
        case Call("atan2", _):  # float32's pi is above pi; y = -0.0 may give -pi
            return Range(-4.0, 4.0)
        case Call("numel" | "ndim" | "rows" | "cols" | "machine_eps", _):
            return NOT_NEGATIVE
        case Call("sum" | "row_sum" | "col_sum" | "mean" | "row_mean" | "col_mean", (a,)):
            return NOT_NEGATIVE if is_not_negative(a, ranges) else ANYTHING
        case Call("lerp", (a, b, weight)):
            weights = range_of(weight, ranges)
            inside = 0 <= weights.low and weights.high <= 1
            return range_of(a, ranges).union(range_of(b, ranges)) if inside else ANYTHING
        case Call("**", (_, Const(int() as power))) if power % 2 == 0:
            return NOT_NEGATIVE
        case Call("maximum", (a, b)):
            sides = range_of(a, ranges), range_of(b, ranges)
            return Range(max(s.low for s in sides), max(s.high for s in sides))
        case Call("minimum", (a, b)):
            sides = range_of(a, ranges), range_of(b, ranges)
            return Range(min(s.low for s in sides), min(s.high for s in sides))
        case Call("where", (_, a, b)):
            return range_of(a, ranges).union(range_of(b, ranges))
        case Linear(terms):
            of_terms = [_range_of_term(term, ranges) for term in terms]
            return _interval(
                sum(each.low for each in of_terms), sum(each.high for each in of_terms)
            )
        case Call("+" | "-" | "*" | "/" | "**" as word, (a, b)):
            return _arithmetic(word, range_of(a, ranges), range_of(b, ranges))
        case _:
            return ANYTHING


def _negative_if_zero(low: float) -> float:
    """Return a lower bound that is negative if the value may be -0.0: for 0, return -1.

    A value of -0.0 is not below 0, but its root is -0.0 and its reciprocal is -inf.
    """
    return low or -1.0


def _range_of_term(term: Term, ranges: Ranges) -> Range:
    """Return a term's range. For a product of tensors only the sign is tracked."""
    powers = Counter((*term.factors, *term.divisors))
    odd = [factor for factor, power in powers.items() if power % 2]  # even powers are nonnegative
    if not powers:
        return range_of(term.coefficient, ranges)
    nonnegative = all(range_of(e, ranges).low >= 0 for e in (term.coefficient, *odd))
    return NOT_NEGATIVE if nonnegative else ANYTHING


def _arithmetic(word: str, a: Range, b: Range) -> Range:
    match word:
        case "+":
            return _interval(a.low + b.low, a.high + b.high)
        case "-":
            return _interval(a.low - b.high, a.high - b.low)
        case "**" if a.low >= 0:
            shrinks = (a.high <= 1 and b.low >= 0) or (a.low >= 1 and b.high <= 0)
            return Range(0.0, 1.0 if shrinks else inf)
        case "*" | "/" if a.low >= 0 and b.low >= 0:
            return NOT_NEGATIVE
        case _:
            return ANYTHING


def _interval(low: float, high: float) -> Range:
    """Return the interval [low, high]; an end that is NaN (inf - inf) becomes infinite."""
    return Range(-inf if isnan(low) else low, inf if isnan(high) else high)


def is_not_negative(expr: Expr, ranges: Ranges) -> bool:
    """Tell whether a value is provably >= 0."""
    return range_of(expr, ranges).low >= 0


def proven_ranges(algorithm: Algorithm) -> Ranges:
    """Return the range of every version of every name of a rule, valid in every step.

    A state is nonnegative if its initial value is, and if every step keeps it nonnegative. The
    proof assumes all candidate states to be nonnegative, drops those that a step may make negative,
    and repeats until none is dropped.
    """
    assumed = {s.symbol for s in algorithm.states if _begins_nonnegative(s, algorithm)}
    while True:
        declared = declared_ranges(algorithm)
        assumption = {Ref(name): NOT_NEGATIVE for name in assumed}
        ranges = ranges_after(algorithm.rule, declared | assumption)
        still_proven = {
            name
            for name in assumed
            if all(
                ranges[stmt.target].low >= 0
                for stmt in assigns(algorithm.rule)
                if stmt.target.name == name
            )
        }
        if still_proven == assumed:
            return ranges
        assumed = still_proven


def _begins_nonnegative(state: State, algorithm: Algorithm) -> bool:
    if state.init == "index":
        return True
    if isinstance(state.init, str):
        return declared_ranges(algorithm).get(Ref(state.init), Range()).low >= 0
    return state.init >= 0


def ranges_after(program: Program, before: Ranges) -> dict[Ref, Range]:
    """Return the ranges of all names after a program, given those before it.

    A name that both arms of a branch assign has the union of both ranges.
    """
    ranges = dict(before)
    for stmt in assigns(program):
        new = range_of(stmt.value, ranges)
        ranges[stmt.target] = new.union(ranges.get(stmt.target, new))
    return ranges

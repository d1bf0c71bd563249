"""Keeps the axes of values whose conditions fold away.

`where(False and g != 0, 2, 2)` is a 2 for every element of `g`, and its sum is twice their number.
Folding would leave one number 2. So this pass makes it a choice between two equal values, by a
condition that reads `g`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

from optgen.ir.kinds import Axes, Lookup, kind_of
from optgen.ir.nodes import Call, Const, Expr, Place, Ref, children, rebuild
from optgen.ir.words import MATRIX_WORDS, REDUCTIONS, WORDS
from optgen.passes.fold_expression import fold


def keep_axes(value: Expr, kinds: Lookup) -> Expr:
    """Return an equal value that keeps its axes when it is folded, as do operands of reductions."""

    def kept(expr: Expr) -> Expr:
        axes = kind_of(expr, kinds).axes
        if kind_of(fold(expr), kinds).axes == axes:
            return expr
        asked = dict.fromkeys(_with_axes(expr, kinds))
        if _is_condition(expr):
            return _condition(expr, _compared("<", asked, expr.place))
        return Call("where", (_compared("==", asked, expr.place), expr, expr), expr.place)

    def inside(expr: Expr) -> Expr:
        expr = rebuild(expr, inside)
        if isinstance(expr, Call) and expr.word in (*REDUCTIONS, *MATRIX_WORDS):
            return replace(expr, args=(kept(expr.args[0]), *expr.args[1:]))
        return expr

    return kept(inside(value))


def _is_condition(expr: Expr) -> bool:
    return isinstance(expr, Call) and WORDS[expr.word].sort in ("comparison", "logic")


def _compared(comparison: str, asked: Iterable[Expr], place: Place) -> Expr:
    """Return a condition with the axes of all these values: each is compared with itself."""
    compared = (Call(comparison, (each, each), place) for each in asked)
    return reduce(lambda a, b: Call("and", (a, b), place), compared)


def _condition(expr: Expr, never: Expr) -> Expr:
    """Return an equal condition with the axes of one that never holds."""
    if fold(expr) == Const(True):
        return Call("not", (never,), expr.place)
    return Call("or", (expr, never), expr.place)


def _with_axes(expr: Expr, kinds: Lookup) -> Iterator[Expr]:
    """Yield the names and the reductions whose axes an expression has."""
    if kind_of(expr, kinds).axes is Axes.NONE:
        return  # a word that only asks a tensor, rows(p), has none either
    if isinstance(expr, Ref) or (isinstance(expr, Call) and expr.word in REDUCTIONS):
        yield expr
        return
    for child in children(expr):
        yield from _with_axes(child, kinds)

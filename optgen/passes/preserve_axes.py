"""Preserve the axes of values that constant folding would turn into one number.

`where(False and g != 0, 2, 2)` is 2 for every element of `g`, and its sum is twice the number of
elements. Folding would leave the number 2, whose sum is 2. So this pass replaces the expression by
a `where` of two equal values, with a condition that reads `g`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

from optgen.ir.binding_times import Axes, KindLookup, kind_of
from optgen.ir.nodes import Call, Const, Expr, Place, Ref, children, rebuild
from optgen.ir.ops import LINEAR_ALGEBRA, MATRIX_OPS, OPS, REDUCTIONS
from optgen.passes.fold_expression import fold


def preserve_axes(value: Expr, kinds: KindLookup) -> Expr:
    """Return an equal value that keeps its axes when it is folded.

    The operands of its reductions, matrix ops and linear algebra keep their axes, too.
    """

    def preserved(expr: Expr) -> Expr:
        axes = kind_of(expr, kinds).axes
        if kind_of(fold(expr), kinds).axes == axes:
            return expr
        sources = dict.fromkeys(_sources_of_axes(expr, kinds))
        if _is_condition(expr):
            return _condition_with_axes(expr, _self_comparisons("<", sources, expr.place))
        return Call("where", (_self_comparisons("==", sources, expr.place), expr, expr), expr.place)

    def with_preserved_operands(expr: Expr) -> Expr:
        expr = rebuild(expr, with_preserved_operands)
        if isinstance(expr, Call) and expr.op in (*REDUCTIONS, *MATRIX_OPS, *LINEAR_ALGEBRA):
            num_tensors = 2 if expr.op == "@" else 1  # the first operands
            args = (*map(preserved, expr.args[:num_tensors]), *expr.args[num_tensors:])
            return replace(expr, args=args)
        return expr

    return preserved(with_preserved_operands(value))


def _is_condition(expr: Expr) -> bool:
    return isinstance(expr, Call) and OPS[expr.op].category in ("comparison", "logic")


def _self_comparisons(comparison: str, values: Iterable[Expr], place: Place) -> Expr:
    """Return a condition with the axes of all these values: each is compared with itself."""
    compared = (Call(comparison, (each, each), place) for each in values)
    return reduce(lambda a, b: Call("and", (a, b), place), compared)


def _condition_with_axes(expr: Expr, never: Expr) -> Expr:
    """Return an equal condition with the axes of `never`, a condition that never holds."""
    if fold(expr) == Const(True):
        return Call("not", (never,), expr.place)
    return Call("or", (expr, never), expr.place)


def _sources_of_axes(expr: Expr, kinds: KindLookup) -> Iterator[Expr]:
    """Yield the names, reductions and products that give an expression its axes."""
    if kind_of(expr, kinds).axes is Axes.NONE:
        return  # a property of a tensor, such as rows(p), has no axes
    not_elementwise = (*REDUCTIONS, *LINEAR_ALGEBRA)
    if isinstance(expr, Ref) or (isinstance(expr, Call) and expr.op in not_elementwise):
        yield expr
        return
    for child in children(expr):
        yield from _sources_of_axes(child, kinds)

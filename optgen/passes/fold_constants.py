"""Fold arithmetic on constants, and branches whose conditions are constant or already decided.

Printers expect folded expressions. Folding must not change the axes of a value that is reduced.
`where(False and g != 0, 2, 2)` is 2 for every element of `g`, and its sum is twice the number of
elements. Folding would leave the number 2, whose sum is 2. So such an expression is first replaced
by a `where` of two equal values, with a condition that reads `g`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from typing import TypeGuard

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate_numbers import evaluate_numbers
from optgen.ir.kinds import Axes, Kind, KindLookup, declared_kinds, kind_of
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Place,
    Program,
    Ref,
    Stmt,
    children,
    rebuild,
    refs,
)
from optgen.ir.ops import LINEAR_ALGEBRA, MATRIX_OPS, OPS, REDUCTIONS


def fold_constants(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with its expressions folded and its unreachable arms dropped."""
    kinds = declared_kinds(algorithm)
    stored = {algorithm.param, *(s.symbol for s in algorithm.device_states())}
    hypers = frozenset(hyper.name for hyper in algorithm.hypers)
    folder = _Folder(kinds, {name: kinds[name] for name in stored}, hypers)
    return replace(algorithm, rule=folder.program(algorithm.rule))


class _Folder:
    """Constant folder that tracks the kind of every name, statement by statement."""

    def __init__(
        self, kinds: dict[str, Kind], stored: dict[str, Kind], hypers: frozenset[str]
    ) -> None:
        self.kinds = dict(kinds)
        self.stored = stored  # kinds of p and of states: they stay tensors if assigned a number
        self.hypers = hypers  # no statement changes them
        self.decided: dict[Expr, bool] = {}  # truth of conditions on hyperparameters, in this arm

    def program(self, program: Program) -> Program:
        """Return a program with its expressions folded and its unreachable arms dropped."""
        folded_stmts: list[Stmt] = []
        for stmt in program:
            if isinstance(stmt, Assign):
                value = fold(_preserve_axes(stmt.value, self.kind))
                folded_stmts.append(replace(stmt, value=value))
                name, kind = stmt.target.name, kind_of(stmt.value, self.kind)
                self.kinds[name] = kind.join(self.stored.get(name, kind))
                continue
            condition = self.condition(stmt.condition)
            if is_truth(condition):
                folded_stmts += self.program(stmt.then if condition.value else stmt.orelse)
                continue
            then, orelse = self.arms(replace(stmt, condition=condition))
            folded_stmts.append(replace(stmt, condition=condition, then=then, orelse=orelse))
        return tuple(folded_stmts)

    def condition(self, condition: Expr) -> Expr:
        """Return a folded condition; it becomes a constant if the branches around it decide it."""
        folded = fold(condition)
        unnegated, holds = _without_not(folded)
        return Const(self.decided[unnegated] is holds) if unnegated in self.decided else folded

    def arms(self, stmt: If) -> tuple[Program, Program]:
        """Return both folded arms: `then`, `orelse`. Join the kinds that they give to names."""
        kinds_before = dict(self.kinds)
        then = self.arm(stmt.then, stmt.condition, is_then=True)
        after_then, self.kinds = self.kinds, kinds_before
        orelse = self.arm(stmt.orelse, stmt.condition, is_then=False)
        for name, kind in after_then.items():
            self.kinds[name] = kind.join(self.kinds.get(name, kind))
        return then, orelse

    def arm(self, program: Program, condition: Expr, is_then: bool) -> Program:
        """Return a folded arm of a branch whose condition holds in the `then` arm only."""
        outer, (unnegated, holds) = self.decided, _without_not(condition)
        if {ref.name for ref in refs(unnegated)} <= self.hypers:
            self.decided = {**outer, unnegated: holds == is_then}
        folded = self.program(program)
        self.decided = outer
        return folded

    def kind(self, ref: Ref) -> Kind:
        return self.kinds[ref.name]


def _without_not(condition: Expr) -> tuple[Expr, bool]:
    """Return a condition without leading negations, and whether their number is even."""
    holds = True
    while isinstance(condition, Call) and condition.op == "not":
        (condition,), holds = condition.args, not holds
    return condition, holds


def _preserve_axes(value: Expr, kinds: KindLookup) -> Expr:
    """Return an equal value that keeps its axes when it is folded.

    The operands of its reductions, matrix ops and linear algebra keep their axes, too.
    """

    def preserved(expr: Expr) -> Expr:
        axes = kind_of(expr, kinds).axes
        if kind_of(fold(expr), kinds).axes == axes:
            return expr
        sources = dict.fromkeys(_sources_of_axes(expr, kinds))
        if isinstance(expr, Call) and OPS[expr.op].category in ("comparison", "logic"):
            never = _self_comparisons("<", sources, expr.place)
            if fold(expr) == Const(True):
                return Call("not", (never,), expr.place)
            return Call("or", (expr, never), expr.place)
        return Call("where", (_self_comparisons("==", sources, expr.place), expr, expr), expr.place)

    def with_preserved_operands(expr: Expr) -> Expr:
        expr = rebuild(expr, with_preserved_operands)
        if isinstance(expr, Call) and expr.op in (*REDUCTIONS, *MATRIX_OPS, *LINEAR_ALGEBRA):
            num_tensors = 2 if expr.op == "@" else 1  # the first operands
            args = (*map(preserved, expr.args[:num_tensors]), *expr.args[num_tensors:])
            return replace(expr, args=args)
        return expr

    return preserved(with_preserved_operands(value))


def _self_comparisons(comparison: str, values: Iterable[Expr], place: Place) -> Expr:
    """Return a condition with the axes of all these values: each is compared with itself."""
    compared = (Call(comparison, (each, each), place) for each in values)
    return reduce(lambda a, b: Call("and", (a, b), place), compared)


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


_FOLDED_CATEGORIES = ("arithmetic", "comparison", "function")
_LARGEST_INT = 2**31  # every printed language has the integers below it
_PRODUCTS = (-2, -1, 2, 3, 4)  # exponents of powers that are products, or one over a product


def fold(expr: Expr) -> Expr:
    """Return an expression with all arithmetic and logic on constants evaluated.

    A power of 0.5 becomes a root, as in torch: its last bit is right, and that of `pow` may be
    wrong. Exponents such as 3.0 become integers, whose powers are products.
    """
    expr = rebuild(expr, fold)
    match expr:
        case Const(int() as value) if abs(value) >= _LARGEST_INT:
            return replace(expr, value=float(value))
        case Call("neg", (Call("neg", (a,)),)) | Call("not", (Call("not", (a,)),)):
            return a
        case Call("not", (a,)) if is_truth(a):
            return Const(not a.value, expr.place)
        case Call("and" | "or" as word, (a, b)):
            for side, other in ((a, b), (b, a)):
                if is_truth(side):
                    return side if side.value is (word == "or") else other
        case Call("**", (a, Const(0.5 | -0.5 as exponent))) if not _is_number(a):
            root = replace(expr, op="sqrt", args=(a,))
            return root if exponent > 0 else replace(expr, op="/", args=(Const(1), root))
        case Call("**", (a, Const(1))) if not _is_number(a):
            return a
        case Call("**", (a, Const(float(n), place))) if n in _PRODUCTS and not _is_number(a):
            return replace(expr, args=(a, Const(int(n), place)))
        case Call("truth", (a,)) if _is_number(a):
            return Const(a.value != 0, expr.place)
        case Call(word, args) if OPS[word].category in _FOLDED_CATEGORIES and all(
            map(_is_number, args)
        ):
            return _evaluated(expr)
    return expr


def _evaluated(call: Call) -> Const:
    """Evaluate an op on constants in float64. Integer operands give an integer if that is exact."""
    constants = [arg.value for arg in call.args if isinstance(arg, Const)]
    values = [value for value in constants if isinstance(value, int | float)]
    result = evaluate_numbers(call.op, values)
    has_integers = all(isinstance(value, int) for value in values) and call.op != "/"
    is_integral = repr(result).endswith(".0") and result != 0  # 0 may be -0.0
    if has_integers and is_integral and abs(result) < _LARGEST_INT:
        result = int(result)
    return Const(result, call.place)


def is_truth(expr: Expr) -> TypeGuard[Const]:
    """Tell whether an expression is True or False."""
    return isinstance(expr, Const) and isinstance(expr.value, bool)


def _is_number(expr: Expr) -> TypeGuard[Const]:
    value = expr.value if isinstance(expr, Const) else None
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Expand means and norms into four primitive reductions: sum, row_sum, col_sum and max_abs.

What remains is arithmetic on the parameter's sizes. A plan does it once per parameter, between two
sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, Stmt, rebuild
from optgen.ir.value_kinds import Axes, Kind, declared_kinds, kind_of


def expand_reductions(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm, SSA or not, that has no reductions but these four."""
    kinds = {Ref(name): kind for name, kind in declared_kinds(algorithm).items()}
    return replace(algorithm, rule=_expanded_program(algorithm, algorithm.rule, kinds))


def _expanded_program(algorithm: Algorithm, program: Program, kinds: dict[Ref, Kind]) -> Program:
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, Assign):
            kinds[stmt.target] = kind_of(stmt.value, kinds.__getitem__)
            out.append(replace(stmt, value=_expanded(algorithm, stmt.value, kinds)))
        else:
            condition = _expanded(algorithm, stmt.condition, kinds)
            arms = [_expanded_program(algorithm, arm, kinds) for arm in (stmt.then, stmt.orelse)]
            out.append(replace(stmt, condition=condition, then=arms[0], orelse=arms[1]))
    return tuple(out)


def _expanded(algorithm: Algorithm, expr: Expr, kinds: dict[Ref, Kind]) -> Expr:
    whole = rebuild(expr, lambda child: _expanded(algorithm, child, kinds))
    if not isinstance(whole, Call) or whole.op not in _EXPANDED:
        return whole
    (x,) = whole.args
    param = Ref(algorithm.param)
    return _EXPANDED[whole.op](x, _count(kind_of(x, kinds.__getitem__).axes, param), param)


def _count(axes: Axes, param: Ref) -> Expr:
    """Return the expression for a value's number of elements."""
    sizes = {Axes.ROW: _size("cols", param), Axes.COLUMN: _size("rows", param)}
    sizes[Axes.MATRIX] = Call("*", (_size("rows", param), _size("cols", param)))
    every = _size("numel", param)
    return Call("/", (every, sizes[axes])) if axes in sizes else every


def _size(word: str, param: Ref) -> Expr:
    return Call(word, (param,))


def _sum_of_squares(x: Expr, word: str = "sum") -> Expr:
    return Call(word, (Call("**", (x, Const(2))),))


def _root(x: Expr) -> Expr:
    return Call("sqrt", (x,))


_EXPANDED: dict[str, Callable[[Expr, Expr, Ref], Expr]] = {
    "row_mean": lambda x, _, p: Call("/", (Call("row_sum", (x,)), _size("cols", p))),
    "col_mean": lambda x, _, p: Call("/", (Call("col_sum", (x,)), _size("rows", p))),
    "row_norm": lambda x, _, p: _root(_sum_of_squares(x, "row_sum")),
    "col_norm": lambda x, _, p: _root(_sum_of_squares(x, "col_sum")),
    "row_rms": lambda x, _, p: _root(Call("/", (_sum_of_squares(x, "row_sum"), _size("cols", p)))),
    "col_rms": lambda x, _, p: _root(Call("/", (_sum_of_squares(x, "col_sum"), _size("rows", p)))),
    "mean": lambda x, count, _: Call("/", (Call("sum", (x,)), count)),
    "norm": lambda x, _count, _: _root(_sum_of_squares(x)),
    "rms": lambda x, count, _: _root(Call("/", (_sum_of_squares(x), count))),
}

"""Expand means and norms into primitive reductions and arithmetic on the parameter's sizes.

The primitive reductions are `sum` and `max_abs`, of all elements, of each row or of each column.
The arithmetic runs once per parameter, between two sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from optgen.contract.states import RANK
from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes, Kind, declared_kinds, effective_rank, height, kind_of, width
from optgen.ir.nodes import Assign, Call, Const, Expr, Ref, map_statements, rebuild


def expand_reductions(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm, in SSA form or not, with primitive reductions only."""
    kinds = {Ref(name): kind for name, kind in declared_kinds(algorithm).items()}

    def expanded(expr: Expr) -> Expr:
        return _expanded(algorithm, expr, kinds)

    def changed(stmt: Assign) -> Assign:
        kinds[stmt.target] = kind_of(stmt.value, kinds.__getitem__)
        return replace(stmt, value=expanded(stmt.value))

    return replace(algorithm, rule=map_statements(algorithm.rule, changed, expanded))


def _expanded(algorithm: Algorithm, expr: Expr, kinds: dict[Ref, Kind]) -> Expr:
    expr = rebuild(expr, lambda child: _expanded(algorithm, child, kinds))
    if not isinstance(expr, Call) or expr.op not in _EXPANSIONS:
        return expr
    (x,) = expr.args
    sizes = _Sizes(kind_of(x, kinds.__getitem__).axes, Ref(algorithm.param))
    return _EXPANSIONS[expr.op](x, sizes)


@dataclass(frozen=True)
class _Sizes:
    """Expressions that count the elements of a value with these axes."""

    axes: Axes
    param: Ref

    def of_row(self) -> Expr:
        """Return the number of elements in a row."""
        size = width(self.axes)
        return self._size_of_param("cols" if size == "1" else size)

    def of_column(self) -> Expr:
        """Return the number of elements in a column."""
        size = height(self.axes)
        return self._size_of_param("rows" if size == "1" else size)

    def element_count(self) -> Expr:
        """Return the number of all elements.

        A parameter holds numel / (rows * cols) matrices. If a size of the value cancels a divisor,
        both are left out.
        """
        numel = self._size_of_param("numel")
        sizes = sorted(size for size in (height(self.axes), width(self.axes)) if size != "1")
        if self.axes is Axes.NONE or sizes == ["cols", "rows"]:
            return numel
        first, *others = sizes or ("1",)
        rows, cols = self._size_of_param("rows"), self._size_of_param("cols")
        divisor = {"rows": cols, "cols": rows}.get(first)
        if divisor is None:
            divisor, others = Call("*", (rows, cols)), sizes
        count = Call("/", (numel, divisor))
        for size in others:
            count = Call("*", (count, self._size_of_param(size)))
        return count

    def _size_of_param(self, size: str) -> Expr:
        return effective_rank(self.param.name) if size == RANK else Call(size, (self.param,))


def _sum_of_squares(x: Expr, word: str = "sum") -> Expr:
    return Call(word, (Call("**", (x, Const(2))),))


def _root(x: Expr) -> Expr:
    return Call("sqrt", (x,))


_EXPANSIONS: dict[str, Callable[[Expr, _Sizes], Expr]] = {
    "row_mean": lambda x, sizes: Call("/", (Call("row_sum", (x,)), sizes.of_row())),
    "col_mean": lambda x, sizes: Call("/", (Call("col_sum", (x,)), sizes.of_column())),
    "row_norm": lambda x, sizes: _root(_sum_of_squares(x, "row_sum")),
    "col_norm": lambda x, sizes: _root(_sum_of_squares(x, "col_sum")),
    "row_rms": lambda x, sizes: _root(Call("/", (_sum_of_squares(x, "row_sum"), sizes.of_row()))),
    "col_rms": lambda x, sizes: _root(
        Call("/", (_sum_of_squares(x, "col_sum"), sizes.of_column()))
    ),
    "mean": lambda x, sizes: Call("/", (Call("sum", (x,)), sizes.element_count())),
    "norm": lambda x, sizes: _root(_sum_of_squares(x)),
    "rms": lambda x, sizes: _root(Call("/", (_sum_of_squares(x), sizes.element_count()))),
}

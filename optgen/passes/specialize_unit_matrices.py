"""Specialize a rule to 1 x 1 matrices, whose row and column sums are their elements.

The weight of a 1 x 1 convolution has up to half a million such matrices. The specialized rule is
elementwise, so one loop over elements replaces the loops over rows and columns. Only reductions
over the whole parameter still end a sweep.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, Const, Expr, map_expressions, rebuild


def specialize_unit_matrices(algorithm: Algorithm) -> Algorithm:
    """Return the rule for parameters whose matrices have one element each."""
    states = tuple(
        replace(s, shape="like") if s.shape in ("row", "col") else s for s in algorithm.states
    )
    return replace(algorithm, states=states, rule=map_expressions(algorithm.rule, _specialized))


def _specialized(expr: Expr) -> Expr:
    expr = rebuild(expr, _specialized)
    match expr:
        case Call("row_mean" | "col_mean" | "row_sum" | "col_sum", (x,)):
            return x
        case Call(
            "row_norm" | "col_norm" | "row_rms" | "col_rms" | "row_max_abs" | "col_max_abs", (x,)
        ):
            return Call("abs", (x,), expr.place)
        case Call("rows" | "cols", _):
            return Const(1)
    return expr

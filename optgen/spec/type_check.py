"""Infer the type of an expression in a spec: number, truth, tuple or choice."""

from __future__ import annotations

from typing import Literal

from optgen.contract.states import FACTS
from optgen.ir.kinds import SHAPES, Axes
from optgen.ir.nodes import Call, Const, Expr, Ref
from optgen.ir.ops import OPS
from optgen.spec.constant_arithmetic import is_real
from optgen.spec.scope import Scope

ValueType = Literal["number", "truth", "tuple", "choice"]
_BOOLEAN_OPS = ("truth", "is_none", "fresh", *FACTS)
SHAPE_NAMES = {
    Axes.NONE: "a number",
    Axes.MATRIX: "a number per matrix",
    Axes.ROW: "a number per row",
    Axes.COLUMN: "a number per column",
    Axes.TENSOR: "a tensor",
    Axes.ROW_T: "a transposed number per row",
    Axes.COLUMN_T: "a transposed number per column",
    Axes.ROWS_ROWS: "a matrix (rows, rows)",
    Axes.COLS_COLS: "a matrix (cols, cols)",
    Axes.TENSOR_T: "a transposed tensor",
    Axes.RANK: "a number per row of a matrix (rank, rank)",
    Axes.RANK_T: "a number per column of a matrix (rank, rank)",
    **{
        axes: f"a matrix {SHAPES[axes]}"
        for axes in (Axes.ROWS_RANK, Axes.COLS_RANK, Axes.RANK_ROWS, Axes.RANK_COLS, Axes.RANK_RANK)
    },
}
"""Descriptions of values that vary along these axes, for error messages."""


def type_of(expr: Expr, scope: Scope) -> ValueType:
    """Return the type of an expression in a scope; "truth" means true or false."""
    match expr:
        case Const(bool()):
            return "truth"
        case Const(value):
            return "number" if is_real(value) else "choice"
        case Ref(name):
            hyper = scope.algorithm.hyper(name)
            if hyper is None:
                return "truth" if name in scope.booleans else "number"
            if hyper.type == "flag":
                return "truth"
            return hyper.type
        case Call(op) if op in _BOOLEAN_OPS or OPS[op].category in ("comparison", "logic"):
            return "truth"
    return "number"


def why_not_a_number(expr: Expr, scope: Scope) -> tuple[str, str]:
    """Return an error message and a hint if an expression is not a number; else ("", "")."""
    match type_of(expr, scope):
        case "truth":
            return "is true or false, not a number", "write an if, or where(condition, a, b)"
        case "tuple":
            return "holds several numbers", "unpack it first: beta1, beta2 = betas"
        case "choice":
            if isinstance(expr, Const):
                return "is not a number", "write a number"
            return "is a choice, not a number", "compare it: == or !=, or `is None`"
    return "", ""

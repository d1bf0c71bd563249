"""What an expression is: a number, an answer, a tuple or the name of a choice."""

from __future__ import annotations

from typing import Literal

from optgen.ir.nodes import Call, Const, Expr, Ref
from optgen.ir.ops import FACTS, OPS
from optgen.ir.value_kinds import Axes
from optgen.spec.constant_arithmetic import is_real
from optgen.spec.scope import Scope

ValueType = Literal["number", "truth", "tuple", "choice"]
_ANSWERS = ("truth", "is_none", "fresh", *FACTS)
SHAPE_NAMES = {
    Axes.NONE: "a number",
    Axes.MATRIX: "a number per matrix",
    Axes.ROW: "a number per row",
    Axes.COLUMN: "a number per column",
    Axes.TENSOR: "a tensor",
}
"""What a name is, by its axes."""


def type_of(expr: Expr, scope: Scope) -> ValueType:
    """The sort of an expression read in a scope."""
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
        case Call(op) if op in _ANSWERS or OPS[op].category in ("comparison", "logic"):
            return "truth"
    return "number"


def why_no_number(expr: Expr, scope: Scope) -> tuple[str, str]:
    """What is wrong with an expression where a number should stand, and the way out; or ""s."""
    match type_of(expr, scope):
        case "truth":
            return "is true or false, and no number", "write an if, or where(condition, a, b)"
        case "tuple":
            return "holds several numbers", "unpack it first: beta1, beta2 = betas"
        case "choice":
            if isinstance(expr, Const):
                return "is no number", "write a number"
            return "is a choice", "compare it: == or !=, or `is None`"
    return "", ""

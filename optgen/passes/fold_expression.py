"""Fold constants and double negations in one expression. Printers expect folded expressions.

A power of 0.5 becomes a root, as in torch: its last bit is right, and that of `pow` may be wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from optgen.ir.evaluate_numbers import evaluate_numbers
from optgen.ir.nodes import Call, Const, Expr, rebuild
from optgen.ir.ops import OPS

_FOLDED_CATEGORIES = ("arithmetic", "comparison", "function")
_LARGEST_INT = 2**31  # every printed language has the integers below it


def fold(expr: Expr) -> Expr:
    """Return an expression with all arithmetic and logic on constants evaluated."""
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

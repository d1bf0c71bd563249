"""Derive descriptive names for the results of matrix words, such as `grad_product`."""

from __future__ import annotations

from collections.abc import Mapping

from optgen.ir.kinds import Axes, Kind
from optgen.ir.nodes import Call, Expr, only_factor, refs


def matrix_word_name(word: Call, kinds: Mapping[str, Kind]) -> str:
    """Return a name for the result of a matrix word: its main tensor's name and a suffix.

    The main tensor is the first one of the parameter's shape, or else the first. `kinds` has the
    kinds of the rule's own variables.
    """
    names = [
        ref.name for ref in refs(word) if ref.name not in kinds or not kinds[ref.name].is_scalar
    ]
    like_param = [name for name in names if name in kinds and kinds[name].axes is Axes.TENSOR]
    main_name = next(iter((*like_param, *names)), "matrix")
    return f"{main_name}_{_suffix(word)}"


def _suffix(word: Call) -> str:
    match word:
        case Call("@", (a, b)) if _is_transpose(b, a):
            return "row_gram"
        case Call("@", (a, b)) if _is_transpose(a, b):
            return "col_gram"
        case Call("@"):
            return "product"
        case Call(op):
            return op


def _is_transpose(expr: Expr, other: Expr) -> bool:
    """Tell whether an expression is the transpose of another."""
    match only_factor(expr):
        case Call("transpose", (operand,)):
            return only_factor(operand) == only_factor(other)
        case _:
            return False

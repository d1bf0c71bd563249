"""Literals and arithmetic on literals: everything a declaration may hold."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from optgen.spec.source import Source

_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def literal(node: ast.expr, source: Source, constants: Mapping[str, Any]) -> Any:
    """The value of a literal, a tuple of them, a module constant, or arithmetic on numbers."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(literal(item, source, constants) for item in items)
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _ARITHMETIC:
            return _apply(node, source, type(op), literal(operand, source, constants))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            values = literal(left, source, constants), literal(right, source, constants)
            return _apply(node, source, type(op), *values)
    source.error(
        node,
        f"`{source.quote(node)}` is not a literal",
        "a declaration is read, not run: write a number, a string, a tuple, or arithmetic on them",
    )


def _apply(node: ast.expr, source: Source, operation: type[ast.AST], *values: Any) -> Any:
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        source.error(node, "arithmetic in a declaration is on numbers only")
    try:
        return _ARITHMETIC[operation](*values)
    except (ArithmeticError, ValueError) as error:
        source.error(node, f"`{source.quote(node)}` has no value: {error}")

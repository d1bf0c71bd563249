"""The look of a spec's code: spaces, brackets, numbers and long lines, as a formatter has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

WIDTH = 100

_SIGNS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
    ast.MatMult: "@",
    ast.Pow: "**",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.And: "and",
    ast.Or: "or",
}
_OR, _AND, _NOT, _COMPARED, _SUM, _PRODUCT, _NEGATIVE, _POWER, _ATOM = range(9)


def source(node: ast.expr) -> str:
    """Return an expression as text."""
    return _text(node, _OR)


def number(x: object) -> str:
    """Return a constant as text: 0.001 is `1e-3`."""
    if isinstance(x, tuple):
        return f"({', '.join(map(number, x))}{',' * (len(x) == 1)})"
    if not isinstance(x, float) or isinstance(x, bool):
        return repr(x)
    digits, _, exponent = f"{x:.16e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    if 0 < abs(x) < 0.05 and len(digits.removeprefix("-")) == 1:
        return f"{digits}e{int(exponent)}"
    mantissa, e, power = repr(x).partition("e")
    return f"{mantissa}e{int(power)}" if e else repr(x)


def assignment(indent: str, name: str, value: str) -> Iterator[str]:
    """Yield the lines of `name = value`. A value that is too long for a line stands in brackets."""
    node = ast.parse(value, mode="eval").body
    line = f"{indent}{name} = {source(node)}"
    if len(line) <= WIDTH:
        yield line
    elif isinstance(node, ast.Call):
        yield f"{indent}{name} = {source(node.func)}("
        yield from _split(indent + "    ", [source(each) for each in node.args], ", ")
        yield f"{indent})"
    else:
        yield f"{indent}{name} = ("
        yield from _split(indent + "    ", list(_parts(node, WIDTH - len(indent) - 4)), " ")
        yield f"{indent})"


def _split(indent: str, parts: Sequence[str], between: str) -> Iterator[str]:
    """Yield parts in one line if they fit, else in a line each."""
    line = indent + between.join(parts)
    if len(line) <= WIDTH:
        yield line
        return
    yield from (indent + part + between.rstrip() for part in parts)


def _parts(node: ast.expr, width: int) -> Iterator[str]:
    """Yield the operands of a sum or a product, each with the sign before it.

    An operand that is a longer product than `width` is divided too.
    """
    if not isinstance(node, ast.BinOp) or isinstance(node.op, ast.Pow):
        yield source(node)
        return
    level = _level(node)
    chain: list[tuple[str, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and _level(left) == level:
        chain.insert(0, (_SIGNS[type(left.op)] + " ", left.right))
        left = left.left
    for sign, each in [("", left), *chain]:
        text = sign + _text(each, level + 1 if sign else level)
        if len(text) > width and level < _level(each) == _PRODUCT:
            first, *others = _parts(each, width)
            yield from [sign + first, *others]
        else:
            yield text


def _level(node: ast.expr) -> int:
    """Return how strongly an expression's operator binds."""
    match node:
        case ast.BoolOp(op=op):
            return _OR if isinstance(op, ast.Or) else _AND
        case ast.UnaryOp(op=ast.Not()):
            return _NOT
        case ast.Compare():
            return _COMPARED
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return _SUM
        case ast.BinOp(op=ast.Pow()):
            return _POWER
        case ast.BinOp():
            return _PRODUCT
        case ast.UnaryOp():
            return _NEGATIVE
        case ast.Constant(value=int() | float() as x) if x < 0:
            return _NEGATIVE
    return _ATOM


def _text(node: ast.expr, level: int) -> str:
    """Return an expression as text, in brackets if it binds less strongly than its place."""
    own = _level(node)
    text = _bare(node, own)
    return f"({text})" if own < level else text


def _bare(node: ast.expr, own: int) -> str:
    match node:
        case ast.Constant(value=value):
            return number(value)
        case ast.BoolOp(op=op, values=values):
            return f" {_SIGNS[type(op)]} ".join(_text(each, own + 1) for each in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"not {_text(operand, own)}"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{_text(operand, own)}"
        case ast.Compare(left=left, ops=ops, comparators=others):
            rest = zip(ops, others, strict=True)
            compared = (f" {_SIGNS[type(op)]} {_text(each, own + 1)}" for op, each in rest)
            return _text(left, own + 1) + "".join(compared)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            is_simple = _is_simple(left) and _is_simple(right)
            sign = "**" if is_simple else " ** "
            return f"{_text(left, own + 1)}{sign}{_text(right, _NEGATIVE)}"
        case ast.BinOp(left=left, op=op, right=right):
            return f"{_text(left, own)} {_SIGNS[type(op)]} {_text(right, own + 1)}"
        case ast.Call(func=func, args=args, keywords=keywords):
            words = [source(each) for each in args]
            words += [f"{each.arg}={source(each.value)}" for each in keywords]
            return f"{source(func)}({', '.join(words)})"
    return ast.unparse(node)


def _is_simple(node: ast.expr) -> bool:
    """Tell if a power of an operand is written without spaces."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        node = node.operand
    return isinstance(node, ast.Name | ast.Constant)

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
    if isinstance(x, str):
        return f'"{x}"'
    if not isinstance(x, float) or isinstance(x, bool):
        return repr(x)
    digits, _, exponent = f"{x:.16e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    if 0 < abs(x) < 0.05 and len(digits.removeprefix("-")) == 1:
        return f"{digits}e{int(exponent)}"
    mantissa, e, power = repr(x).partition("e")
    return f"{mantissa}e{int(power)}" if e else repr(x)


def assignment(indent: str, name: str, value: str) -> Iterator[str]:
    """Yield the lines of `name = value`. A value that is too long for a line is divided."""
    node = ast.parse(value, mode="eval").body
    line = f"{indent}{name} = {source(node)}"
    if len(line) <= WIDTH or isinstance(node, ast.Call):
        yield from _divided(indent, f"{name} = ", node, "")
    else:
        yield f"{indent}{name} = ("
        yield from _divided(indent + "    ", "", node, "")
        yield f"{indent})"


def call(name: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a call as an argument: in one line, or in as many as it needs."""
    inside, width = ", ".join(arguments), WIDTH - 4
    if len(name) + len(inside) + 3 <= width:
        yield f"{name}({inside}),"
        return
    yield f"{name}("
    yield from [f"    {inside}"] if len(inside) + 4 <= width else (f"    {a}," for a in arguments)
    yield "),"


def _divided(indent: str, before: str, node: ast.expr, after: str) -> Iterator[str]:
    """Yield an expression, with texts before and after it, in as many lines as it needs."""
    line = f"{indent}{before}{source(node)}{after}"
    if len(line) <= WIDTH:
        yield line
        return
    if isinstance(node, ast.Call):
        yield f"{indent}{before}{source(node.func)}("
        inner = indent + "    "
        arguments = inner + ", ".join(source(each) for each in node.args)
        if len(arguments) <= WIDTH:
            yield arguments
        else:
            for each in node.args:
                yield from _divided(inner, "", each, "," if len(node.args) > 1 else "")
        yield f"{indent}){after}"
        return
    parts = list(_parts(node, WIDTH - len(indent)))
    for sign, part, level in parts:
        end = after if part is parts[-1][1] else ""
        if isinstance(part, ast.Call):
            yield from _divided(indent, before + sign, part, end)
        else:
            yield f"{indent}{before}{sign}{_text(part, level)}{end}"
        before = ""


def _parts(node: ast.expr, width: int) -> Iterator[tuple[str, ast.expr, int]]:
    """Yield the operands of a sum or a product: the sign before each, and how strongly it binds.

    An operand that is a longer product than `width` is divided too.
    """
    level = _level(node)
    chain: list[tuple[str, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and _level(left) == level != _POWER:
        chain.insert(0, (_SIGNS[type(left.op)] + " ", left.right))
        left = left.left
    for sign, each in [("", left), *chain]:
        inner = level + 1 if sign else level
        if len(sign + _text(each, inner)) > width and level < _level(each) == _PRODUCT:
            (_, first, place), *others = _parts(each, width)
            yield from [(sign, first, place), *others]
        else:
            yield sign, each, inner


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

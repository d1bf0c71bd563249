"""Values of a recorded step, and their text: what is computed from what, and the author's names."""

from __future__ import annotations

import ast
import hashlib
import math
from dataclasses import dataclass, field

Constant = int | float | bool | str | None

HUGE = 1.7976931348623157e308
"""The largest finite float64. The language has no infinity; in float32 it is one."""
LONG = 500
"""The characters of a key that is not shortened."""
BINARY: dict[str, type[ast.operator]] = {
    "add": ast.Add,
    "sub": ast.Sub,
    "mul": ast.Mult,
    "div": ast.Div,
    "pow": ast.Pow,
    "mod": ast.Mod,
    "matmul": ast.MatMult,
}
COMPARISONS: dict[str, type[ast.cmpop]] = {
    "lt": ast.Lt,
    "le": ast.LtE,
    "gt": ast.Gt,
    "ge": ast.GtE,
    "eq": ast.Eq,
    "ne": ast.NotEq,
}
PROPERTIES = ("rows", "cols", "numel", "ndim", "machine_eps")
"""Words for what a parameter is in all steps, in spite of its numbers."""
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


@dataclass(eq=False)
class Value:
    """A recorded number or tensor.

    `op` is "atom" (then `name` is a word of the spec, such as "p" or "lr"), "constant", or an
    operation on `args`. `name` is the author's variable, which may be found later.
    """

    op: str
    args: tuple[Value, ...] = ()
    constant: Constant = None
    name: str | None = None
    place: tuple[str, int] = ("", 0)
    reads_tensors: bool = False
    key: str = field(default="", repr=False)
    kind: str = "number"
    """number, tensor, row, col, turned: what the shape of a recorded tensor is."""
    origins: frozenset[tuple[str, int]] = frozenset()
    """The arguments that it is computed from, each with the number of the step that read it from
    its group; 0 if it is as the constructor got it."""
    step: int | None = None
    """The number of the step that recorded it, 0 in the constructor; None if nothing has."""
    atoms: frozenset[str] = frozenset()
    """The names of all atoms that it is computed from."""
    ops: frozenset[str] = frozenset()
    """All operations that it is computed by."""

    def __post_init__(self) -> None:
        """Fill in the key: the structure without the author's names."""
        if self.op == "atom":
            self.key = str(self.name)
        elif self.op == "constant":
            self.key = repr(self.constant)
        else:
            self.key = f"{self.op}({','.join(each.key for each in self.args)})"
        if len(self.key) > LONG:  # products of products would double it each time
            self.key = f"{self.op}:{hashlib.sha256(self.key.encode()).hexdigest()}"
        names = {str(self.name)} if self.op == "atom" else set()
        self.atoms = frozenset(names).union(*(each.atoms for each in self.args))
        self.ops = frozenset([self.op]).union(*(each.ops for each in self.args))
        self.reads_tensors |= any(each.reads_tensors for each in self.args)
        self.origins = self.origins.union(*(each.origins for each in self.args))


def constant(value: Constant) -> Value:
    """Return a constant as a value. A whole float is written as an int, infinity as HUGE."""
    if isinstance(value, float) and math.isinf(value):
        value = math.copysign(HUGE, value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return Value("constant", constant=value)


def is_constant(value: Value, number: float | None = None) -> bool:
    """Tell whether a value is a constant, or a given constant."""
    return value.op == "constant" and (number is None or value.constant == number)


def apply(op: str, *args: Value) -> Value:
    """Return the value of an operation. What changes nothing is left out: `x * 1`, `x + 0`."""
    first = args[0]
    second = args[1] if len(args) > 1 else None
    if second is not None:
        if op in ("mul", "div", "pow") and is_constant(second, 1):
            return first
        if op in ("add", "sub") and is_constant(second, 0):
            return first
        if op == "mul" and is_constant(first, 1):
            return second
        if op == "add" and is_constant(first, 0):
            return second
        if op == "add" and _counts(first) is not None and isinstance(second.constant, int | float):
            return _shifted_count(first, float(second.constant))
        if op == "sub" and _counts(first) is not None and isinstance(second.constant, int | float):
            return _shifted_count(first, -float(second.constant))
        if op == "add" and is_constant(first) and not is_constant(second):
            return apply("add", second, first)
    if op == "neg" and isinstance(first.constant, int | float):
        return constant(-first.constant)
    if op == "pow" and (root := _root_of(first, args[1])) is not None:
        return root
    return Value(op, args)


def _root_of(value: Value, power: Value) -> Value | None:
    """Return x of `(x ** (1 / n)) ** n` if x is a sum, as in a norm's n-th power; else None."""
    if value.op != "pow" or not value.args[0].op.endswith("sum"):
        return None
    root, inner, outer = value.args[0], value.args[1].constant, power.constant
    if isinstance(inner, float) and isinstance(outer, int | float) and inner * outer == 1:
        return root
    return None


def _counts(value: Value) -> float | None:
    """Return c of the value `t + c`; None for other values."""
    if value.op == "atom" and value.name == "t":
        return 0
    if value.op in ("add", "sub") and value.args[0].key == "t":
        other = value.args[1].constant
        if isinstance(other, int | float):
            return other if value.op == "add" else -other
    return None


def _shifted_count(value: Value, shift: float) -> Value:
    total = (_counts(value) or 0) + shift
    t = Value("atom", name="t")
    if total == 0:
        return t
    return Value("add" if total > 0 else "sub", (t, constant(abs(total))))


def expression(value: Value, *, is_definition: bool = False) -> ast.expr:
    """Return a value as Python's syntax. A named value is its name, except in its definition."""
    if value.name is not None and not is_definition:
        return ast.parse(value.name, mode="eval").body
    if value.op == "constant":
        return ast.parse(repr(value.constant), mode="eval").body
    if value.op == "copy":
        return expression(value.args[0])
    args = [expression(each) for each in value.args]
    if value.op in BINARY:
        return _binary(value.op, *args)
    if value.op in COMPARISONS:
        return ast.Compare(args[0], [COMPARISONS[value.op]()], [args[1]])
    if value.op == "neg":
        return positive(args[0]) or ast.UnaryOp(ast.USub(), args[0])
    if value.op == "not":
        return ast.UnaryOp(ast.Not(), args[0])
    if value.op in ("and", "or"):
        return ast.BoolOp(ast.And() if value.op == "and" else ast.Or(), args)
    word, _, over = value.op.partition("@")
    if word == "count":
        word, args = (
            "sum",
            [ast.parse("where(g > 0, 1, 1)", mode="eval").body],
        )
    keywords = [ast.keyword("over", ast.Constant(over))] if over else []
    return ast.Call(ast.Name(word), args, keywords)


def text(value: Value) -> str:
    """Return a value as text."""
    return ast.unparse(expression(value))


def _binary(op: str, left: ast.expr, right: ast.expr) -> ast.expr:
    """Return an operation; `a + -b * c` is written as `a - b * c`."""
    if op in ("add", "sub") and (other := positive(right)) is not None:
        return ast.BinOp(left, ast.Sub() if op == "add" else ast.Add(), other)
    return ast.BinOp(left, BINARY[op](), right)


def positive(node: ast.expr) -> ast.expr | None:
    """Return `b * c` of `-b * c`; None if a product does not begin with a minus."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return operand
        case ast.Constant(value=int() | float() as number) if number < 0:
            return ast.Constant(-number)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() as op, right=right):
            inner = positive(left)
            if isinstance(inner, ast.Constant) and inner.value == 1:
                return right if isinstance(op, ast.Mult) else ast.BinOp(inner, op, right)
            return None if inner is None else ast.BinOp(inner, op, right)
    return None

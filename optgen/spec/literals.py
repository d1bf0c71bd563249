"""Read the values in declarations: literals, and arithmetic on them within float64."""

from __future__ import annotations

import ast
import math
import operator
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from optgen.ir.evaluate_numbers import PYTHON_FUNCTIONS
from optgen.ir.nodes import Call, Const, Expr
from optgen.spec.errors import did_you_mean
from optgen.spec.source import Source

T = TypeVar("T")


def literal(node: ast.expr, source: Source, constants: Mapping[str, Any]) -> Any:
    """Return the value of a literal, a tuple, a constant of the file, or arithmetic on numbers."""
    match node:
        case ast.Constant(value=bool() | str() | None as value):
            return value
        case ast.Constant(value=int() | float() as value):
            return compute_finite(node, source, lambda: constant_number(value))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return literal(operand, source, constants)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            items_read = tuple(literal(item, source, constants) for item in items)
            for item, item_read in zip(items, items_read, strict=True):
                if isinstance(item_read, tuple):  # sixty in each other have 2**60 items
                    hint = "a tuple holds numbers, or strings"
                    source.error(item, "a tuple inside a tuple", hint)
            return items_read
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return _apply(node, source, type(op), literal(operand, source, constants))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            values = literal(left, source, constants), literal(right, source, constants)
            return _apply(node, source, type(op), *values)
    source.error(
        node,
        f"`{source.quote(node)}` is not a literal",
        "a declaration is read, not run: write a number, a string, a tuple, or arithmetic on them",
    )


def _apply(node: ast.expr, source: Source, operation: type[ast.AST], *values: Any) -> Any:
    if not all(map(is_real, values)):
        source.error(node, "a declaration computes with numbers only", "write the value itself")
    return compute_finite(node, source, lambda: compute(OPERATORS[operation], *values))


def compute_finite(node: ast.expr, source: Source, compute_value: Callable[[], T]) -> T:
    """Return the computed value; raise a SpecError at a node if it is not a finite number."""
    try:
        return compute_value()
    except (ArithmeticError, ValueError) as error:
        hint = "write a number that Python can compute and float64 can hold"
        source.error(node, f"`{source.quote(node)}` has no value: {error.args[-1]}", hint)


def is_real(value: Any) -> bool:
    """Tell whether a literal is a number. True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Option:
    """A keyword of a declaration: a test of its values, and a description of them."""

    accepts: Callable[[Any], bool]
    description: str


def one_of(*values: str | tuple[str, ...] | None) -> Option:
    """Return an option that accepts only these values."""
    return Option(lambda v: v in values, "one of " + ", ".join(map(repr, values)))


TEXT = Option(lambda v: isinstance(v, str), "a string")
NUMBER = Option(is_real, "a number")
BOOLEAN = Option(lambda v: isinstance(v, bool), "True or False")
STRINGS = Option(
    lambda v: isinstance(v, tuple) and all(isinstance(item, str) for item in v),
    'a tuple of strings: ("a", "b")',
)


_SYNONYMS = {"min": "ge", "max": "le", "low": "ge", "high": "le", "doc": "about", "help": "about"}
"""Options under the names that they have in other libraries, for hints."""


def options(
    keywords: Iterable[ast.keyword],
    allowed: Mapping[str, Option],
    source: Source,
    constants: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the keywords of a declaration, after checking their names and values."""
    values: dict[str, Any] = {}
    for keyword in keywords:
        name = keyword.arg
        if name is None:
            source.error(keyword.value, "`**` is not allowed here", "write each option out")
        if name not in allowed:
            listed = f"options: {', '.join(allowed) or 'none'}"
            synonym = _SYNONYMS.get(name, "")
            suggestion = f"write {synonym}=." if synonym in allowed else did_you_mean(name, allowed)
            hint = f"{suggestion} {listed}" if suggestion else listed
            source.error(keyword, f"unknown option `{name}`", hint)
        value = literal(keyword.value, source, constants)
        if not allowed[name].accepts(value):
            hint = f"it is {allowed[name].description}"
            source.error(keyword.value, f"`{name}` cannot be {value!r}", hint)
        values[name] = value
    return values


def message_fields(text: str, node: ast.AST, source: Source) -> Iterator[str]:
    """Yield the names in braces in a message.

    Raises:
        SpecError: the message is no format string, or holds more than names in braces.
    """
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        hint = "write a name in braces, or no braces"
        source.error(node, f"the message is not a format string: {error}", hint)
    for _, name, format_spec, conversion in fields:
        if format_spec or conversion:
            hint = "write only a name in braces"
            source.error(node, f"`{{{name}…}}` in a message", hint)
        if name is not None:
            yield name


OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.USub: "neg",
}
"""Python's operators that declarations may use, with the names of their ops."""

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

_LARGEST_EXACT_INT = 2**53
"""Float64, in which rules compute numbers, holds every whole number up to this magnitude."""

_MAX_FLOAT64_BITS = 1024
"""Float64 is finite below 2**1024."""


def constant_number(value: float) -> float:
    """Return a number as rules compute with it: an int up to 2**53, else a finite float.

    Raises:
        OverflowError: the number is not finite in float64.
    """
    if isinstance(value, int) and abs(value) <= _LARGEST_EXACT_INT:
        return value
    is_long = isinstance(value, int) and value.bit_length() > _MAX_FLOAT64_BITS
    if is_long or not math.isfinite(value):
        raise OverflowError("it is not finite in float64")
    return float(value)


def compute(op: str, *values: float) -> float:
    """Return the result of an op on numbers.

    Raises:
        ArithmeticError, ValueError: the result is not a finite real number.
    """
    return constant_number(PYTHON_FUNCTIONS[op](*values))


def value_of(expr: Expr) -> float | None:
    """Return the value of an expression made of constants, or None for any other expression.

    Raises:
        ArithmeticError, ValueError: the value is not a finite real number in float64.
    """
    match expr:
        case Const(int() | float() as value):
            return value
        case Call(op, args) if op in PYTHON_FUNCTIONS:
            values = [value_of(arg) for arg in args]
            numbers = [value for value in values if value is not None]
            return compute(op, *numbers) if len(numbers) == len(values) else None
    return None

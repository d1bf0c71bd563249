"""Read the values in declarations: literals, and arithmetic on them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from optgen.spec.constant_arithmetic import OPERATORS, compute, constant_number, is_real
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

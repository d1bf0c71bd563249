"""The lines of a class that name a thing, for refusals that no running line of the author makes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

Place = tuple[str, int]
NOWHERE = "", 0


def line_that_sets(cls: type, name: str) -> Place:
    """Return the line of a class that gives a value to a key or an attribute.

    It is the first line that names the key if none gives it a value, and ("", 0) if none names it.
    """
    mentioned = NOWHERE
    for place, node in _nodes(cls):
        match node:
            case ast.Subscript(slice=ast.Constant(value), ctx=ast.Store()) if value == name:
                return place
            case ast.Attribute(attr=attribute, ctx=ast.Store()) if attribute == name:
                return place
            case ast.Constant(value=value) if value == name and not mentioned[0]:
                mentioned = place
    return mentioned


def line_of_argument(cls: type, name: str) -> Place:
    """Return the line of the constructor that declares an argument; ("", 0) if it has no source."""
    for (file, first), node in _nodes(cls):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for each in ast.walk(node.args):
                if isinstance(each, ast.arg) and each.arg == name:
                    return file, first + each.lineno - node.lineno
    return NOWHERE


def line_of_property(cls: type, name: str) -> Place:
    """Return the line of a class that defines a property; ("", 0) if there is none."""
    getter = getattr(getattr(cls, name, None), "fget", None)
    code = getattr(getter, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else NOWHERE


def _nodes(cls: type) -> Iterator[tuple[Place, ast.AST]]:
    """Yield the syntax of a class and of its bases with places, as it stands in the text.

    torch's base has none of it.
    """
    for each in cls.__mro__:
        if each in torch.optim.Optimizer.__mro__:
            continue
        try:
            lines, first = inspect.getsourcelines(each)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        file = inspect.getsourcefile(each) or ""
        for node in sorted(filter(_has_place, ast.walk(tree)), key=_place_of):
            yield (file, first + _place_of(node)[0] - 1), node


def _has_place(node: ast.AST) -> bool:
    return hasattr(node, "lineno")


def _place_of(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset

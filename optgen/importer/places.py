"""The lines of a class that name a thing, for refusals that no running line of the author makes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

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
    for place, node in _nodes(cls):
        if isinstance(node, ast.arg) and node.arg == name:
            return place
    return NOWHERE


def line_of_property(cls: type, name: str) -> Place:
    """Return the line of a class that defines a property; ("", 0) if there is none."""
    getter = getattr(getattr(cls, name, None), "fget", None)
    code = getattr(getter, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else NOWHERE


def _nodes(cls: type) -> Iterator[tuple[Place, ast.AST]]:
    """Yield the syntax of a class and of its bases with places; torch's base has none of it."""
    for each in cls.__mro__:
        if each in torch.optim.Optimizer.__mro__:
            continue
        try:
            lines, first = inspect.getsourcelines(each)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        file = inspect.getsourcefile(each) or ""
        for node in ast.walk(tree):
            if hasattr(node, "lineno"):
                yield (file, first + node.lineno - 1), node

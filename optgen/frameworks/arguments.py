"""Read the arguments of an optimizer from a line of a configuration file."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Mapping
from reprlib import Repr
from typing import Any

_WORDS = {"true": True, "false": False, "null": None, "inf": math.inf, "nan": math.nan}
"""Bare words that are no text; Python's own parser knows True, False and None."""
_GIVEN_ELSEWHERE = ("name", "model_or_params", "params")
"""Names that a configuration gives in other places: its optimizer's, and what it trains."""
_QUOTE = Repr()
_QUOTE.maxstring = _QUOTE.maxother = _QUOTE.maxlong = 200


def read_arguments(written: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return the arguments that a configuration file gives to an optimizer.

    Args:
        written: a mapping, as YAML has it; a JSON object; or text such as
            `betas=(0.9, 0.95), eps=1e-6`. A bare word is text, as in `mode=fast`, except for
            true, false, null, inf, nan, and Python's True, False and None.

    Raises:
        ValueError: the text is in no such form or gives a name twice; or a name is that of an
            optimizer or of parameters, which are given elsewhere.
    """
    try:
        arguments = _read(written)
    # A deep text exceeds a limit of the parser; an unhashable key of a dict is a TypeError.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        raise ValueError(
            f"cannot read the optimizer's arguments {_QUOTE.repr(written)}{reason}: write them as "
            "in a call, betas=(0.9, 0.95), eps=1e-6, or as JSON"
        ) from error
    for name in _GIVEN_ELSEWHERE:
        if name in arguments:
            raise ValueError(
                f"the optimizer's arguments {_QUOTE.repr(written)} hold {name!r}, which is given "
                "elsewhere: take it out of the arguments"
            )
    return arguments


def _read(written: Any) -> dict[str, Any]:
    if written is None or (isinstance(written, str) and not written.strip()):
        return {}
    if isinstance(written, Mapping):
        return _named(written.items())
    if not isinstance(written, str):
        raise ValueError(f"a value of type {type(written).__name__} has no names")
    if written.lstrip().startswith("{"):
        return _named(json.loads(written, object_pairs_hook=_named).items())
    return _read_call(written)


def _named(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return a dict of pairs, whose names must be text and must differ."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise ValueError(f"{_QUOTE.repr(name)} is no name")
        if name in result:
            raise ValueError(f"{name} is given twice")
        result[name] = value
    return result


def _read_call(text: str) -> dict[str, Any]:
    """Return the keyword arguments of the call `f(text)`, which hold literals and bare words."""
    call = ast.parse(f"f({text})", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError("this is no list of names with values")
    return _named((each.arg, _value(each.value)) for each in call.keywords)


def _value(node: ast.expr) -> Any:
    known = _KnownWords().visit(node)
    return known.id if isinstance(known, ast.Name) else ast.literal_eval(known)


class _KnownWords(ast.NodeTransformer):
    """Replace the bare words that are no text by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return a constant in place of a known word."""
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node

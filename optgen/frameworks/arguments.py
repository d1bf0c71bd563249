"""Read the arguments of an optimizer from a line of a configuration file."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any


def read_arguments(written: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return the arguments that a configuration file gives to an optimizer.

    Args:
        written: a mapping, as YAML has it; a JSON object; or text such as
            `betas=(0.9, 0.95), eps=1e-6`. A bare word is text, as in `mode=fast`.

    Raises:
        ValueError: the text is in no such form.
    """
    if written is None or (isinstance(written, str) and not written.strip()):
        return {}
    if isinstance(written, Mapping):
        return dict(written)
    try:
        if written.lstrip().startswith("{"):
            return dict(json.loads(written))
        return _read_call(written)
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"cannot read the optimizer's arguments {written!r}: write them as in a call, "
            "betas=(0.9, 0.95), eps=1e-6, or as JSON"
        ) from error


def _read_call(text: str) -> dict[str, Any]:
    """Return the keyword arguments of the call `f(text)`, which hold literals and bare words."""
    call = ast.parse(f"f({text})", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError("no list of keyword arguments")
    return {_name(each): _value(each.value) for each in call.keywords}


def _name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("** has no name")
    return keyword.arg


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)

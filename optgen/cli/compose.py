"""Implement `optgen compose`, which prints the spec of an optimizer with modifiers."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import typer

from optgen.cli.catalogue import spec_path
from optgen.compositions import (
    StateDtype,
    composed_spec,
    errors_of_parts,
    list_modifiers,
    modifier,
    quantized,
    spec_of,
    state_dtype,
)
from optgen.emit import find_ruff, format_python
from optgen.modifiers import load
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.declare import Modifier
from optgen.spec.errors import did_you_mean
from optgen.spec.read_spec import read_spec


def spec_text(optimizer: str, modifiers: Sequence[str], name: str | None) -> str:
    """Return the text of the spec, formatted if there is a formatter.

    Raises:
        typer.BadParameter: a name or an argument is wrong, or the parts do not go together.
        SpecError: a part has a mistake, or the composed rule is not in the language.
    """
    parsed_modifiers = tuple(map(_parse_modifier, modifiers))
    try:
        spec = composed_spec(spec_of(spec_path(optimizer)), parsed_modifiers, name)
    except (CompositionError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None
    with errors_of_parts(spec):
        read_spec(spec)
    ruff = find_ruff()
    return format_python(spec.source, ruff) if ruff else spec.source


def _parse_modifier(text: str) -> Modifier | StateDtype:
    """Return the modifier that `ema`, `ema(0.99)` or `my_noise.py(0.1)` names."""
    name, bracket, rest = text.partition("(")
    constructor = _constructor(name)
    args, options = _parse_arguments(bracket + rest) if bracket else ([], {})
    try:
        parsed: Modifier | StateDtype = constructor(*args, **options)
    except TypeError as error:
        raise typer.BadParameter(str(error)) from None
    return parsed


def _constructor(name: str) -> Any:
    """Return the callable that makes a modifier from its arguments."""
    if name in ("quantized", "state_dtype"):
        return quantized if name == "quantized" else state_dtype
    if name.endswith(".py"):
        return load(spec_path(name))
    if name in list_modifiers():
        return modifier(name)
    hint = did_you_mean(name, list_modifiers(), f"there are {', '.join(list_modifiers())}")
    raise typer.BadParameter(f"no modifier is called {name}; {hint}")


def _parse_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call: the list of positional ones, and the dict of named ones."""
    try:
        match ast.parse(f"call{text}", mode="eval").body:
            case ast.Call(func=ast.Name(), args=args, keywords=keywords):
                options = {k.arg: ast.literal_eval(k.value) for k in keywords if k.arg}
                if len(options) == len(keywords):
                    return [ast.literal_eval(arg) for arg in args], options
    except (SyntaxError, ValueError):
        pass
    message = f"{text} are not literal arguments: write ema(0.99) or clip_norm(max_norm=2)"
    raise typer.BadParameter(message)

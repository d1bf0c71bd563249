"""Complete parts before they are composed: derive optimizers, and set values of modifiers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from optgen.spec.composition.parts import Part, declares

_FROM_BASE = ("gradient", "step")
"""Options that a derived optimizer always takes from its base."""
_INHERITED = ("sparse_hint", "group")
"""Options that a derived optimizer takes from its base if it has none of its own."""


def derived(part: Part, base: Part) -> Part:
    """Return an optimizer with the states, the hyperparameters and the rule of its base."""
    own, result = part.copy(), base.copy()
    defaults = {argument.arg: default for argument, default in own.hypers}
    result.node.args.kw_defaults = [
        defaults.get(argument.arg, default) for argument, default in result.hypers
    ]
    result.node.name = own.name
    doc = [ast.Expr(ast.Constant(own.doc))]
    result.node.body = [*doc, *base.requirements, *own.requirements, *result.body]
    own_options, base_options = _decorator_options(own), _decorator_options(base)
    options = {name: own_options[name] for name in own_options if name not in ("base", *_FROM_BASE)}
    options |= {name: base_options[name] for name in _FROM_BASE if name in base_options}
    inherited = (name for name in _INHERITED if name in base_options and name not in own_options)
    options |= {name: base_options[name] for name in inherited}
    decorator = ast.Call(
        ast.Name("optimizer", ast.Load()), [], [ast.keyword(*each) for each in options.items()]
    )
    result.node.decorator_list = [decorator]
    return replace(result, definitions=(*result.definitions, *own.definitions))


def with_values(part: Part, values: Mapping[str, Any]) -> Part:
    """Return a modifier with other defaults of its hyperparameters."""
    part = part.copy()
    for argument, declaration in part.hypers:
        if argument.arg in values and isinstance(declaration, ast.Call):
            value = _constant(part, argument.arg, values[argument.arg])
            choices = [ast.unparse(each) for each in declaration.args]
            is_choice = declares(declaration, "choice")
            if is_choice and ast.unparse(value) not in choices:
                requirement = f"`{argument.arg}` is one of {', '.join(choices)}"
                raise TypeError(f"{part.name}: {requirement}, not {ast.unparse(value)}")
            other_choices = [a for a in declaration.args if ast.unparse(a) != ast.unparse(value)]
            declaration.args = [value, *(other_choices if is_choice else declaration.args[1:])]
    return part


def _constant(part: Part, name: str, value: Any) -> ast.expr:
    """Return a default as a node of the syntax tree.

    Raises:
        TypeError: the value is no number, text, None or tuple of these, so no spec can hold it.
    """
    scalar_types = (bool, int, float, str, type(None))
    if type(value) not in (*scalar_types, tuple) and isinstance(value, Real):
        value = float(value)  # a number of NumPy
    if isinstance(value, tuple) and all(isinstance(each, scalar_types) for each in value):
        return ast.Tuple([ast.Constant(each) for each in value], ast.Load())
    if not isinstance(value, scalar_types):
        allowed = "a number, a text, None or a tuple of these"
        raise TypeError(f"{part.name}: `{name}` is a default of a class: {allowed}, not {value!r}")
    return ast.Constant(value)


def _decorator_options(part: Part) -> dict[str, ast.expr]:
    decorator = part.node.decorator_list[0]
    assert isinstance(decorator, ast.Call)
    return {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}

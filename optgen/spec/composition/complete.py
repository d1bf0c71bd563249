"""Complete parts before they are composed: derive optimizers, and set values of modifiers."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from optgen.spec.composition.parts import Part, declares
from optgen.spec.composition.without_flags import without_flags

_FROM_BASE = ("gradient", "step", "scalar_device")
"""Options that a derived optimizer always takes from its base."""
_INHERITED = ("sparse_hint", "group")
"""Options that a derived optimizer takes from its base if it has none of its own."""


def derived(part: Part, base: Part) -> Part:
    """Return an optimizer with the states, the hyperparameters and the rule of its base."""
    own, result = part.copy(), base.copy()
    defaults = {argument.arg: default for argument, default in own.hypers}
    result.node.args.kw_defaults = [
        _with_groups_of(declared, defaults.get(argument.arg, declared))
        for argument, declared in result.hypers
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


def _with_groups_of(of_base: ast.expr | None, own: ast.expr | None) -> ast.expr | None:
    """Return an own declaration; what its groups must share follows from the base's rule."""
    if own is of_base or declares(own, "fixed"):
        return own
    assert isinstance(of_base, ast.Call)
    assert isinstance(own, ast.Call)
    own.keywords = [each for each in own.keywords if each.arg != "groups"]
    own.keywords += [each for each in of_base.keywords if each.arg == "groups"]
    return own


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


def with_plain_update(part: Part, modifiers: Sequence[Part]) -> Part:
    """Return an optimizer that leaves the rounding of its parameter to modifiers.

    A rule may compensate the rounding of 16 bits under a flag, `fixed("narrow")`. A modifier of the
    update or of its store would change what has been compensated. Beside such a modifier, the
    rule goes on without the flag, and takes 16 bits only if a modifier stores the parameter.
    """
    flags = {a.arg for a, declared in part.hypers if _is_narrow_flag(declared)}
    changing = [each for each in modifiers if each.changed_value in ("update", "store")]
    if not flags or not changing:
        return part
    part = without_flags(part, flags)
    if not any(each.changed_value == "store" for each in changing):
        message = (
            f"{part.name} keeps an average in its parameter, and 16 bits do not hold the "
            f"increments beside {changing[0].name}: add kahan, master or stochastic_rounding"
        )
        condition = f"require(machine_eps({part.inputs[0]}) < 1e-4, {message!r})"
        part.node.body[1:1] = ast.parse(condition).body
    return part


def _is_narrow_flag(declared: ast.expr | None) -> bool:
    return declared is not None and ast.unparse(declared) == "fixed('narrow')"


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

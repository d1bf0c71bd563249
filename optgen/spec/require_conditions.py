"""Read `require(condition, message)`, a condition that the constructor checks."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from optgen.contract.states import Condition
from optgen.ir.algorithm import Hyper, Require
from optgen.ir.evaluate_numbers import PYTHON_FUNCTIONS
from optgen.ir.nodes import Call, Const, Expr, Ref, refs, walk
from optgen.ir.ops import FUNCTIONS
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.literals import COMPARISONS, compute, message_fields
from optgen.spec.statements import Statements

_CONDITION_OPS: Mapping[str, Callable[..., Any]] = {
    **PYTHON_FUNCTIONS,
    **COMPARISONS,
    "not": operator.not_,
    "item": operator.getitem,
    "is_none": lambda value: value is None,
    "truth": bool,
}
"""Ops that a condition may use, as Python functions on the values of hyperparameters."""

_PARAM_PROPERTIES = ("ndim", "numel", "factored", "machine_eps")
"""Properties of a parameter that a condition may use."""


def split_requires(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.Call]]:
    """Split a body into the statements of the rule and the calls of `require`."""
    rule: list[ast.stmt] = []
    require_calls: list[ast.Call] = []
    for node in body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="require")) as call):
                require_calls.append(call)
            case _:
                rule.append(node)
    return rule, require_calls


def read_require(reader: Statements, call: ast.Call) -> Require:
    """Read one call of `require`."""
    source = reader.source
    match call.args:
        case [condition, ast.Constant(value=str() as message)] if not call.keywords:
            require = Require(reader.condition(condition), message, source.place(call))
            _check_condition(reader, condition, require)
            _check_message(reader, call.args[1], require)
            if require.is_about_param and _holds_only_if_factored(require.condition):
                reader.scope.known_true |= {Condition("factored")}
            return require
    source.error(call, "`require` takes a condition and a message", 'require(lr > 0, "…")')


def _check_condition(reader: Statements, node: ast.expr, require: Require) -> None:
    """Check that a condition is about hyperparameters, or about the parameter, but not both."""
    error = reader.source.error
    hypers = {h.name for h in reader.scope.algorithm.hypers}
    known = {reader.scope.algorithm.param} if require.is_about_param else hypers
    if any(r.name not in known for r in refs(require.condition)):
        if require.is_about_param:
            hint = "write one `require` about hyperparameters, and another about the parameter"
            error(node, "this `require` is about more than the parameter", hint)
        hint = "use hyperparameters, or ndim(p), numel(p), factored(p) and machine_eps(p)"
        error(node, "this `require` uses what a constructor does not know", hint)
    for inner in walk(require.condition):
        if isinstance(inner, Call) and inner.op not in (
            *_CONDITION_OPS,
            *_PARAM_PROPERTIES,
            "and",
            "or",
        ):
            functions = ", ".join(name for name in FUNCTIONS if name in PYTHON_FUNCTIONS)
            hint = f"compare, or use {functions}"
            error(node, f"`{inner.op}` is not allowed in `require`", hint)


def _check_message(reader: Statements, node: ast.expr, require: Require) -> None:
    """Check the names in braces in a message: hyperparameters and their items, or `shape`."""
    hypers = reader.scope.algorithm.hypers
    known = [h.name for h in hypers]
    otherwise = f"hyperparameters: {', '.join(known)}"
    if require.is_about_param:
        known, otherwise = ["shape"], "{shape} is the parameter's"
    items = [f"{h.name}[{i}]" for h in hypers if h.type == "tuple" for i in range(h.size)]
    for name in message_fields(require.message, node, reader.source):
        if name not in (*known, *items):
            hint = did_you_mean(name, known, otherwise)
            reader.source.error(node, f"unknown name `{{{name}}}` in the message", hint)


def _holds_only_if_factored(condition: Expr) -> bool:
    """Tell whether a condition holds only for parameters with rows and columns."""
    small_shapes = [{"ndim": n, "factored": False} for n in (0, 1)]
    try:
        return not any(_value(condition, shape) for shape in small_shapes)
    except (KeyError, ArithmeticError, ValueError):  # the condition also depends on numel(p)
        return False


def check_defaults(requires: Iterable[Require], hypers: Iterable[Hyper], spec_text: str) -> None:
    """Check that the defaults meet every requirement on hyperparameters.

    Args:
        requires: the requirements.
        hypers: the hyperparameters with their defaults.
        spec_text: the text of the file that holds the requirements.

    Raises:
        SpecError: the first requirement that the defaults do not meet.
    """
    values = {h.name: h.default for h in hypers}
    for require in requires:
        if require.is_about_param:
            continue
        try:
            holds = _value(require.condition, values)
        except (ArithmeticError, ValueError, TypeError) as error:
            message = f"this `require` fails on the defaults: {error.args[-1]}"
            raise SpecError(
                require.place, message, "test for None, 0 or the sign first", spec_text
            ) from None
        if not holds:
            message = f"the defaults violate this `require`: {require.message}"
            raise SpecError(require.place, message, "change a default, or the condition", spec_text)


def _value(expr: Expr, values: Mapping[str, Any]) -> Any:
    """Return the value of a condition, given those of hyperparameters or of properties."""
    match expr:
        case Const(value):
            return value
        case Ref(name):
            return values[name]
        case Call(op, _) if op in _PARAM_PROPERTIES:
            return values[op]
        case Call("and", (a, b)):
            return _value(a, values) and _value(b, values)
        case Call("or", (a, b)):
            return _value(a, values) or _value(b, values)
        case Call(op, args) if op in PYTHON_FUNCTIONS:
            return compute(op, *(_value(a, values) for a in args))
        case Call(op, args):
            return _CONDITION_OPS[op](*(_value(a, values) for a in args))
    raise TypeError(f"not a condition: {expr!r}")

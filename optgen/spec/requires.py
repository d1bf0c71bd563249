"""`require(condition, message)`: what a constructor checks before it makes an optimizer."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from optgen.ir.algorithm import Hyper, Require
from optgen.ir.nodes import Call, Const, Expr, Ref, refs, walk
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.names import message_fields
from optgen.spec.statements import Statements

_MEANING: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "%": operator.mod,
    "neg": operator.neg,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "abs": abs,
    "maximum": max,
    "minimum": min,
    "not": operator.not_,
    "item": operator.getitem,
    "is_none": lambda value: value is None,
    "truth": bool,
}
"""What a constructor can compute: the words that plain numbers have in Python."""


def split_requires(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.Call]]:
    """The rule's statements, and the calls of `require` among them."""
    rule: list[ast.stmt] = []
    required: list[ast.Call] = []
    for node in body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="require")) as call):
                required.append(call)
            case _:
                rule.append(node)
    return rule, required


def read_require(reader: Statements, call: ast.Call) -> Require:
    """One requirement."""
    source = reader.source
    match call.args:
        case [condition, ast.Constant(value=str() as message)] if not call.keywords:
            test = reader.condition(condition)
            hypers = [h.name for h in reader.scope.algorithm.hypers]
            if any(r.name not in hypers for r in refs(test)):
                hint = "a constructor knows hyperparameters only"
                source.error(condition, "`require` asks about hyperparameters", hint)
            for node in walk(test):
                if isinstance(node, Call) and node.word not in (*_MEANING, "and", "or"):
                    hint = "compare, or use sqrt, exp, log, abs, maximum, minimum"
                    source.error(condition, f"`{node.word}` has no place in `require`", hint)
            for name in message_fields(message, call.args[1], source):
                if name not in hypers:
                    hint = did_you_mean(name, hypers, f"hyperparameters: {', '.join(hypers)}")
                    source.error(call.args[1], f"unknown name `{{{name}}}` in the message", hint)
            return Require(test, message, source.place(call))
    source.error(call, "`require` takes a condition and a message", 'require(lr > 0, "…")')


def check_defaults(requires: Iterable[Require], hypers: Iterable[Hyper], text: str) -> None:
    """The defaults meet every requirement: an optimizer can be made without arguments.

    Raises:
        SpecError: the first requirement that they do not meet; `text` is the file it stands in.
    """
    values = {h.name: h.default for h in hypers}
    for require in requires:
        try:
            holds = _value(require.condition, values)
        except (ArithmeticError, ValueError, TypeError) as error:
            message = f"the defaults give this `require` no answer: {error.args[-1]}"
            raise SpecError(
                require.place, message, "ask for None, 0 or signs first", text
            ) from None
        if not holds:
            message = f"the defaults violate this `require`: {require.message}"
            raise SpecError(require.place, message, "change a default, or the condition", text)


def _value(expr: Expr, values: Mapping[str, Any]) -> Any:
    match expr:
        case Const(value):
            return value
        case Ref(name):
            return values[name]
        case Call("and", (a, b)):
            return _value(a, values) and _value(b, values)
        case Call("or", (a, b)):
            return _value(a, values) or _value(b, values)
        case Call(word, args):
            return _MEANING[word](*(_value(a, values) for a in args))
    raise TypeError(f"no condition: {expr!r}")

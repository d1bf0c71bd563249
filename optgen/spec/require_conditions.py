"""`require(condition, message)`: what a constructor checks before it makes an optimizer."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from optgen.ir.algorithm import Hyper, Require
from optgen.ir.nodes import Call, Const, Expr, Ref, refs, walk
from optgen.spec.constant_arithmetic import MEANING, compute
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.reserved_names import message_fields
from optgen.spec.statements import Statements

_MEANING: Mapping[str, Callable[..., Any]] = {
    **MEANING,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "not": operator.not_,
    "item": operator.getitem,
    "is_none": lambda value: value is None,
    "truth": bool,
}
"""What a constructor can compute: the words that plain numbers have in Python."""

_ASKED = ("ndim", "numel", "factored")
"""What a constructor knows of a parameter of any shape."""


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
            require = Require(reader.condition(condition), message, source.place(call))
            _check_condition(reader, condition, require)
            known = [h.name for h in reader.scope.algorithm.hypers]
            what = f"hyperparameters: {', '.join(known)}"
            if require.of_param:
                known, what = ["shape"], "{shape} is the parameter's"
            tuples = [h for h in reader.scope.algorithm.hypers if h.type == "tuple"]
            items = [f"{h.name}[{i}]" for h in tuples for i in range(h.size)]
            for name in message_fields(message, call.args[1], source):
                if name not in (*known, *items):
                    hint = did_you_mean(name, known, what)
                    source.error(call.args[1], f"unknown name `{{{name}}}` in the message", hint)
            if require.of_param and _only_factored(require.condition):
                reader.scope.known_true |= {"factored"}
            return require
    source.error(call, "`require` takes a condition and a message", 'require(lr > 0, "…")')


def _check_condition(reader: Statements, node: ast.expr, require: Require) -> None:
    """A condition asks what a constructor knows: of hyperparameters, or of each parameter."""
    error = reader.source.error
    hypers = {h.name for h in reader.scope.algorithm.hypers}
    known = {reader.scope.algorithm.param} if require.of_param else hypers
    if any(r.name not in known for r in refs(require.condition)):
        if require.of_param:
            hint = "one `require` is about hyperparameters, another about the parameter"
            error(node, "this `require` asks about more than the parameter", hint)
        hint = "a constructor knows hyperparameters, and ndim(p), numel(p), factored(p)"
        error(node, "`require` asks about hyperparameters", hint)
    for inner in walk(require.condition):
        if isinstance(inner, Call) and inner.op not in (*_MEANING, *_ASKED, "and", "or"):
            hint = "compare, or use sqrt, exp, log, abs, maximum, minimum"
            error(node, f"`{inner.op}` has no place in `require`", hint)


def _only_factored(condition: Expr) -> bool:
    """Whether a condition on the parameter fails for all that have no rows and columns."""
    shapes = [{"ndim": n, "factored": False} for n in (0, 1)]
    try:
        return not any(_value(condition, shape) for shape in shapes)
    except (KeyError, ArithmeticError, ValueError):  # it asks for the number of elements too
        return False


def check_defaults(requires: Iterable[Require], hypers: Iterable[Hyper], text: str) -> None:
    """The defaults meet every requirement: an optimizer can be made without arguments.

    Raises:
        SpecError: the first requirement that they do not meet; `text` is the file it stands in.
    """
    values = {h.name: h.default for h in hypers}
    for require in requires:
        if require.of_param:
            continue
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
        case Call(op, _) if op in _ASKED:
            return values[op]
        case Call("and", (a, b)):
            return _value(a, values) and _value(b, values)
        case Call("or", (a, b)):
            return _value(a, values) or _value(b, values)
        case Call(op, args) if op in MEANING:
            return compute(op, *(_value(a, values) for a in args))
        case Call(op, args):
            return _MEANING[op](*(_value(a, values) for a in args))
    raise TypeError(f"no condition: {expr!r}")

"""Read an `@elementwise` function: its lists, and which of them it writes."""

from __future__ import annotations

import ast

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, expressions, walk
from optgen.ir.ops import LINEAR_ALGEBRA, MATRIX_OPS, PROPERTIES, REDUCTIONS
from optgen.spec.reserved_names import is_snake_case, why_taken_verbatim
from optgen.spec.scope import Scope
from optgen.spec.source import Source

WHOLE_TENSOR_OPS = frozenset((*REDUCTIONS, *MATRIX_OPS, *LINEAR_ALGEBRA, *PROPERTIES))
"""Ops that need a whole tensor. Functions over lists, and programs, may not call them."""


def is_elementwise(node: ast.FunctionDef) -> bool:
    """Tell whether a function is decorated with `@elementwise`."""
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(isinstance(d, ast.Name) and d.id == "elementwise" for d in decorators)


def check_decorator_and_name(source: Source, node: ast.FunctionDef) -> None:
    """Check that the decorator is alone and bare, and that the name is in snake_case."""
    match node.decorator_list:
        case [ast.Name()]:
            pass
        case [ast.Call() as call]:
            hint = "@elementwise, without brackets"
            source.error(call, "`@elementwise` takes no options", hint)
        case [_, *_]:
            hint = "one decorator: an optimizer has a class, a function over lists has none"
            source.error(node.decorator_list[1], "a second decorator beside `@elementwise`", hint)
    if not is_snake_case(node.name):
        message = f"`{node.name}` is a function, so its name must be in snake_case"
        source.error(node, message, "its folder and its kernels get this name: my_rule")


def lists_of(source: Source, node: ast.FunctionDef) -> tuple[str, ...]:
    """Return the names of a function's lists, which are declared before `/`."""
    example = f"def {node.name}(a, b, /, *, …)"
    for argument in node.args.args:
        message = f"`{argument.arg}` stands between `/` and `*`, but a function has no state"
        source.error(argument, message, f"write lists before `/`, numbers after `*`: {example}")
    for default in node.args.defaults:
        source.error(default, "a list is an input, so it has no default", example)
    if len(node.args.posonlyargs) < 2:
        message = "an @elementwise function takes two lists or more before `/`"
        source.error(node, message, example)
    for argument in node.args.posonlyargs:
        why = why_taken_verbatim(argument.arg) if argument.arg not in ("param", "grad") else ""
        if why:
            source.error(argument, f"`{argument.arg}` {why}", "choose another name")
    return tuple(a.arg for a in node.args.posonlyargs)


def list_roles(
    source: Source, node: ast.FunctionDef, lists: tuple[str, ...]
) -> tuple[str, str, dict[str, bool]]:
    """Return the first list that the rule writes, the first that it only reads, and the others.

    The others are a dict, which tells for each list whether the rule writes it.
    """
    assigned_names = {
        n.id
        for stmt in node.body
        for n in ast.walk(stmt)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    _check_calls(source, node)
    written_lists = [name for name in lists if name in assigned_names]
    read_only_lists = [name for name in lists if name not in assigned_names]
    if not written_lists:
        message = "the rule writes none of its lists"
        source.error(node, message, f"assign to one: {lists[0]} = …")
    if not read_only_lists:
        message = "the rule writes every list, but at least one must be only read"
        source.error(node, message, "assign intermediate values to other names")
    others = (name for name in lists if name not in (written_lists[0], read_only_lists[0]))
    return written_lists[0], read_only_lists[0], {name: name in assigned_names for name in others}


def _check_calls(source: Source, node: ast.FunctionDef) -> None:
    """Refuse `fresh` and ops that need a whole tensor, before their arguments are checked."""
    nodes = [n for stmt in node.body for n in ast.walk(stmt)]
    for product in (n for n in nodes if isinstance(n, ast.BinOp)):
        if isinstance(product.op, ast.MatMult):
            source.error(product, *_whole_tensor_error("@"))
    for call in (n for n in nodes if isinstance(n, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in WHOLE_TENSOR_OPS:
            source.error(call, *_whole_tensor_error(name))
        if name == "fresh":
            hint = "declare a flag instead: first=flag(False)"
            source.error(call, "a function has no state, so nothing is `fresh`", hint)


def _whole_tensor_error(op: str) -> tuple[str, str]:
    """Return the message and the hint for an op that needs a whole tensor."""
    message = f"`{op}` needs a whole tensor, but the rule is @elementwise"
    verb = "call" if op.isidentifier() else "use"
    return message, f"only a rule of an @optimizer may {verb} {op}"


def check_lists_and_hypers(
    source: Source, algorithm: Algorithm, scope: Scope, node: ast.FunctionDef
) -> None:
    """Check that every list is used, and that no hyperparameter is about param groups."""
    for argument in node.args.posonlyargs:
        if argument.arg not in scope.read | scope.written:
            source.error(argument, f"list `{argument.arg}` is never used", "leave it out")
    for hyper in algorithm.hypers:
        if hyper.fixed:
            message = f"`{hyper.name}` is fixed in a param group, but a function has no groups"
            source.error_at(hyper.place, message, "make it a constant of the file")
        if hyper.groups != "any":
            message = f"`{hyper.name}` has groups=, but a function has no groups"
            source.error_at(hyper.place, message, "leave groups= out")


def check_ops_are_elementwise(source: Source, algorithm: Algorithm) -> None:
    """Check that no op in the rule, in a helper or in a `require` needs a whole tensor."""
    required = (require.condition for require in algorithm.requires)
    for expr in (*required, *expressions(algorithm.rule)):
        for node in walk(expr):
            if isinstance(node, Call) and node.op in WHOLE_TENSOR_OPS:
                source.error_at(node.place, *_whole_tensor_error(node.op))

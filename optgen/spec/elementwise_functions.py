"""What an `@elementwise` function says of its lists: which there are, and which it writes."""

from __future__ import annotations

import ast

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, expressions, walk
from optgen.ir.ops import MATRIX_OPS, PROPERTIES, REDUCTIONS
from optgen.spec.reserved_names import is_snake_case, why_taken_verbatim
from optgen.spec.scope import Scope
from optgen.spec.source import Source

_WHOLE = frozenset((*REDUCTIONS, *MATRIX_OPS, *PROPERTIES))


def is_elementwise(node: ast.FunctionDef) -> bool:
    """Whether a decorated function is meant to be one over lists."""
    names = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(isinstance(n, ast.Name) and n.id == "elementwise" for n in names)


def check_name(source: Source, node: ast.FunctionDef) -> None:
    """The decorator stands alone and bare; the name is that of a function, and of its folder."""
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
        message = f"`{node.name}` is a function, and its name no snake_case word"
        source.error(node, message, "its folder and its kernels are called after it: my_rule")


def lists_of(source: Source, node: ast.FunctionDef) -> tuple[str, ...]:
    """The lists of a function: what stands before `/`; nothing is remembered, so no state."""
    example = f"def {node.name}(a, b, /, *, …)"
    for argument in node.args.args:
        message = f"`{argument.arg}` stands between `/` and `*`, and a function remembers nothing"
        source.error(argument, message, f"lists stand before `/`, numbers after `*`: {example}")
    for default in node.args.defaults:
        source.error(default, "a list is handed over, so it has no default", example)
    if len(node.args.posonlyargs) < 2:
        message = "an @elementwise function takes two lists or more before `/`"
        source.error(node, message, example)
    for argument in node.args.posonlyargs:
        why = why_taken_verbatim(argument.arg) if argument.arg not in ("param", "grad") else ""
        if why:
            source.error(argument, f"`{argument.arg}` {why}", "choose another name")
    return tuple(a.arg for a in node.args.posonlyargs)


def roles(
    source: Source, node: ast.FunctionDef, lists: tuple[str, ...]
) -> tuple[str, str, dict[str, bool]]:
    """The first list that is written, the first only read; of all others, whether it is written."""
    stores = {
        n.id
        for stmt in node.body
        for n in ast.walk(stmt)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    _check_calls(source, node)
    written = [name for name in lists if name in stores]
    read = [name for name in lists if name not in stores]
    if not written:
        message = "the rule writes none of its lists"
        source.error(node, message, f"assign to one: {lists[0]} = …")
    if not read:
        message = "the rule writes every list, and one at least must be only read"
        source.error(node, message, "a value on the way has a name of its own")
    others = (name for name in lists if name not in (written[0], read[0]))
    return written[0], read[0], {name: name in stores for name in others}


def _check_calls(source: Source, node: ast.FunctionDef) -> None:
    """Words for whole tensors, before anything else could be said of how they are called."""
    for call in (n for stmt in node.body for n in ast.walk(stmt) if isinstance(n, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in _WHOLE:
            source.error(call, *_whole_tensor_error(name))
        if name == "fresh":
            hint = "hand over a flag: first=flag(False)"
            source.error(call, "a function remembers nothing, so nothing is `fresh`", hint)


def _whole_tensor_error(op: str) -> tuple[str, str]:
    message = f"`{op}` looks at a whole tensor, and the rule is @elementwise"
    return message, "only an @optimizer's rule may do so"


def check_function(
    source: Source, algorithm: Algorithm, scope: Scope, node: ast.FunctionDef
) -> None:
    """Every list has a use, and no hyperparameter is a key of a group."""
    for argument in node.args.posonlyargs:
        if argument.arg not in scope.read | scope.written:
            source.error(argument, f"list `{argument.arg}` is never used", "leave it out")
    for hyper in algorithm.hypers:
        if hyper.fixed:
            message = f"`{hyper.name}` is fixed in a param group, and a function has none"
            source.error_at(hyper.place, message, "make it a constant of the file")


def check_elementwise(source: Source, algorithm: Algorithm) -> None:
    """No word looks at a whole tensor, in helpers neither."""
    required = (require.condition for require in algorithm.requires)
    for expr in (*required, *expressions(algorithm.rule)):
        for node in walk(expr):
            if isinstance(node, Call) and node.op in _WHOLE:
                source.error_at(node.place, *_whole_tensor_error(node.op))

"""Turn a decorated function into an algorithm: first its declarations, then its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from optgen.contract.states import AT_LEAST_FLOAT32
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.nodes import Call, expressions, walk
from optgen.ir.ops import LINEAR_ALGEBRA, MATRIX_OPS, PROPERTIES, REDUCTIONS
from optgen.spec.literals import BOOLEAN, STRINGS, TEXT, Option, one_of, options
from optgen.spec.op_calls import check_rank, number_calls
from optgen.spec.require_conditions import check_defaults, read_require, split_requires
from optgen.spec.reserved_names import is_snake_case, why_taken_verbatim
from optgen.spec.scope import Scope
from optgen.spec.semantic_checks import (
    check_cases,
    check_device_scalars,
    check_gradient,
    check_orders,
    check_references,
    check_rule,
    check_shapes,
)
from optgen.spec.signature import Signature, check_inputs, check_quantized_rule
from optgen.spec.source import Source, names_stored, nodes_of
from optgen.spec.statements import Statements
from optgen.spec.wide_reductions import check_shared_values

_PAPER = re.compile(r"""((https?://|doi:10\.|arXiv:)[^\s"\\<>\[\]`]+)?""", re.IGNORECASE)
"""A paper becomes a link on a page, so no other scheme, and no sign that ends a link."""

_OPTIONS = {
    "paper": Option(
        lambda v: isinstance(v, str) and bool(_PAPER.fullmatch(v)),
        "an http or https URL, doi:10.…, or arXiv:…",
    ),
    "base": TEXT,
    "keywords": STRINGS,
    "group": STRINGS,
    "gradient": one_of("dense", "rows", "sparse_only"),
    "sparse_hint": TEXT,
    "step": one_of("tensor", "int"),
    "scalar_device": one_of("cpu", "param"),
    "compute_dtype": one_of(AT_LEAST_FLOAT32, "param"),
    "zero_grad": BOOLEAN,
}


def read_algorithm(
    source: Source,
    module: str,
    node: ast.FunctionDef,
    constants: Mapping[str, Any],
    helpers: Mapping[str, ast.FunctionDef],
    read_by_programs: Collection[str] = (),
) -> Algorithm:
    """Return the algorithm that a decorated function of a file declares, after all checks.

    The rule need not read the names in `read_by_programs`, which programs read.

    Raises:
        SpecError: the first mistake in the function.
    """
    signature = Signature(source, constants, node)
    algorithm = _declared(source, module, node, constants, signature)
    signature.check_keys(algorithm.states)
    check_references(source, algorithm)
    check_rank(source, algorithm)
    check_orders(source, algorithm, node)
    check_inputs(source, algorithm, node)
    while True:  # until every scalar state that is computed from a reduction is on the device
        with_rule, scope = read_rule(source, algorithm, node, constants, helpers, read_by_programs)
        scalars_from_reductions = scope.scalars_from_reductions
        if scalars_from_reductions <= {state.symbol for state in algorithm.device_scalars()}:
            break
        # In the next turn, the states that depend on these come from reductions too.
        states = (
            replace(s, on_device=s.on_device or s.symbol in scalars_from_reductions)
            for s in algorithm.states
        )
        algorithm = replace(algorithm, states=tuple(states))
    if with_rule.is_function:
        check_lists_and_hypers(source, with_rule, scope, node)
        check_ops_are_elementwise(source, with_rule)
    check_gradient(source, with_rule, node)
    check_device_scalars(source, with_rule)
    check_shared_values(source, with_rule)
    check_quantized_rule(source, with_rule)
    if with_rule.is_function:
        return with_rule
    states = (replace(s, written=s.symbol in scope.written) for s in with_rule.states)
    return replace(with_rule, states=tuple(states))


def read_rule(
    source: Source,
    algorithm: Algorithm,
    node: ast.FunctionDef,
    constants: Mapping[str, Any],
    helpers: Mapping[str, ast.FunctionDef],
    read_by_programs: Collection[str] = (),
) -> tuple[Algorithm, Scope]:
    """Return a declared algorithm with its rule and its requirements, and the rule's scope."""
    scope = Scope(algorithm, constants, helpers, read=set(read_by_programs))
    reader = Statements(source, scope)
    body, require_calls = split_requires(node.body)
    requires = tuple(read_require(reader, call) for call in require_calls)
    check_defaults(requires, algorithm.hypers, source.padded_text)
    check_shapes(source, algorithm, scope.known_true)
    rule = number_calls(reader.rule(body))
    algorithm = replace(algorithm, rule=rule, requires=requires)
    check_rule(source, algorithm, scope, node, rule)
    check_cases(source, algorithm, scope.known_true)
    return algorithm, scope


def _declared(
    source: Source,
    module: str,
    node: ast.FunctionDef,
    constants: Mapping[str, Any],
    signature: Signature,
) -> Algorithm:
    """Return the algorithm with everything that the signature and the decorator declare."""
    fields = (
        _function_fields(source, node)
        if is_elementwise(node)
        else _optimizer_fields(source, node, constants, signature)
    )
    inputs, flags = ((), ()) if is_elementwise(node) else signature.extra_inputs()
    algorithm = Algorithm(
        name=node.name,
        module=module,
        doc=ast.get_docstring(node) or "",
        hypers=(*signature.hypers(), *flags),
        rule=(),
        source=source.padded_text,
        place=source.place(node),
        **fields,
    )
    algorithm = replace(algorithm, states=(*algorithm.states, *inputs))
    if not algorithm.doc:
        source.error(node, f"`{node.name}` has no docstring", "describe the rule in one line")
    return algorithm


def _function_fields(source: Source, node: ast.FunctionDef) -> dict[str, Any]:
    """Return what an `@elementwise` function declares, except its hyperparameters."""
    check_decorator_and_name(source, node)
    lists = lists_of(source, node)
    param, grad, others = list_roles(source, node, lists)
    return {
        "paper": "",
        "lists": lists,
        "param": param,
        "grad": grad,
        "step": None,
        "states": tuple(State(name, name, written=written) for name, written in others.items()),
    }


def _optimizer_fields(
    source: Source, node: ast.FunctionDef, constants: Mapping[str, Any], signature: Signature
) -> dict[str, Any]:
    """Return what an optimizer declares, except its hyperparameters."""
    param, grad, step = signature.inputs()
    return {
        "param": param,
        "grad": grad,
        "step": step,
        "states": signature.states(),
        **_decorator_options(source, node, constants),
    }


def _decorator_options(
    source: Source, node: ast.FunctionDef, constants: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of `@optimizer(…)`, under the names of the algorithm's fields."""
    match node.decorator_list:
        case [ast.Call(func=ast.Name(id="optimizer"), args=[], keywords=keywords)]:
            pass
        case _:
            source.error(
                node.decorator_list[0],
                "the only decorator of the language is @optimizer(…)",
                '@optimizer(paper="https://…")',
            )
    chosen = options(keywords, _OPTIONS, source, constants)
    if "step" in chosen and len(node.args.posonlyargs) < 3:
        hint = "add the step count t to the inputs: p, g, t, /"
        source.error(node.decorator_list[0], "`step=` in a rule that counts no steps", hint)
    return {"paper": "", "counter": chosen.pop("step", "tensor"), **chosen}


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
    assigned_names = names_stored(node.body)
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
    for product in nodes_of(node.body, ast.BinOp):
        if isinstance(product.op, ast.MatMult):
            source.error(product, *_whole_tensor_error("@"))
    for call in nodes_of(node.body, ast.Call):
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

"""Turn a decorated function into an algorithm: first its declarations, then its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optgen.ir.algorithm import Algorithm, State
from optgen.spec.elementwise_functions import (
    check_elementwise,
    check_function,
    check_name,
    is_elementwise,
    lists_of,
    roles,
)
from optgen.spec.literals import STRINGS, TEXT, Option, one_of, options
from optgen.spec.require_conditions import check_defaults, read_require, split_requires
from optgen.spec.scope import Scope
from optgen.spec.semantic_checks import (
    check_cases,
    check_gradient,
    check_orders,
    check_references,
    check_rule,
    check_shapes,
)
from optgen.spec.signature import Signature
from optgen.spec.source import Source
from optgen.spec.statements import Statements

_OPTIONS = {
    "paper": Option(lambda v: isinstance(v, str) and not re.search(r'[\s"\\]', v), "a URL"),
    "base": TEXT,
    "keywords": STRINGS,
    "group": STRINGS,
    "gradient": one_of("dense", "rows", "sparse_only"),
    "sparse_hint": TEXT,
    "step": one_of("tensor", "int"),
    "scalar_device": one_of("cpu", "param"),
}


def read_algorithm(
    source: Source,
    module: str,
    node: ast.FunctionDef,
    constants: Mapping[str, Any],
    helpers: Mapping[str, ast.FunctionDef],
) -> Algorithm:
    """Return the algorithm that a decorated function of a file declares, after all checks.

    Raises:
        SpecError: the first thing in the function that the language does not allow.
    """
    signature = Signature(source, constants, node)
    algorithm = _declared(source, module, node, constants, signature)
    signature.check_keys(algorithm.states)
    check_references(source, algorithm)
    check_orders(source, algorithm, node)
    scope = Scope(algorithm, constants, helpers)
    reader = Statements(source, scope)
    body, required = split_requires(node.body)
    requires = tuple(read_require(reader, call) for call in required)
    check_defaults(requires, algorithm.hypers, source.whole)
    check_shapes(source, algorithm, scope.known_true)
    rule = reader.rule(body)
    algorithm = replace(algorithm, rule=rule, requires=requires)
    check_rule(source, algorithm, scope, node, rule)
    check_cases(source, algorithm, scope.known_true)
    if algorithm.is_function:
        check_function(source, algorithm, scope, node)
        check_elementwise(source, algorithm)
    check_gradient(source, algorithm, node)
    return algorithm if algorithm.is_function else _with_anchors(algorithm, scope)


def _with_anchors(algorithm: Algorithm, scope: Scope) -> Algorithm:
    """Return the algorithm with `written` set to False for states that no statement writes."""
    states = (replace(s, written=s.symbol in scope.written) for s in algorithm.states)
    return replace(algorithm, states=tuple(states))


def _declared(
    source: Source,
    module: str,
    node: ast.FunctionDef,
    constants: Mapping[str, Any],
    signature: Signature,
) -> Algorithm:
    """Return the algorithm with everything that the signature and the decorator declare."""
    given = (
        _function(source, node)
        if is_elementwise(node)
        else _optimizer(source, node, constants, signature)
    )
    algorithm = Algorithm(
        name=node.name,
        module=module,
        doc=ast.get_docstring(node) or "",
        hypers=signature.hypers(),
        rule=(),
        source=source.whole,
        place=source.place(node),
        **given,
    )
    if not algorithm.doc:
        source.error(node, f"`{node.name}` has no docstring", "describe the rule in one line")
    return algorithm


def _function(source: Source, node: ast.FunctionDef) -> dict[str, Any]:
    """Return what an `@elementwise` function declares, except its hyperparameters."""
    check_name(source, node)
    lists = lists_of(source, node)
    param, grad, others = roles(source, node, lists)
    return {
        "paper": "",
        "lists": lists,
        "param": param,
        "grad": grad,
        "step": None,
        "states": tuple(State(name, name, written=written) for name, written in others.items()),
    }


def _optimizer(
    source: Source, node: ast.FunctionDef, constants: Mapping[str, Any], signature: Signature
) -> dict[str, Any]:
    """Return what an optimizer declares, except its hyperparameters."""
    param, grad, step = signature.inputs()
    return {
        "param": param,
        "grad": grad,
        "step": step,
        "states": signature.states(),
        **_decorator(source, node, constants),
    }


def _decorator(
    source: Source, node: ast.FunctionDef, constants: Mapping[str, Any]
) -> dict[str, Any]:
    match node.decorator_list:
        case [ast.Call(func=ast.Name(id="optimizer"), args=[], keywords=keywords)]:
            pass
        case _:
            source.error(
                node.decorator_list[0],
                "the only decorator of the language is @optimizer(…)",
                '@optimizer(paper="https://…")',
            )
    found = options(keywords, _OPTIONS, source, constants)
    if "step" in found and len(node.args.posonlyargs) < 3:
        hint = "add the step count t to the inputs: p, g, t, /"
        source.error(node.decorator_list[0], "`step=` in a rule that counts no steps", hint)
    return {"paper": "", "counter": found.pop("step", "tensor"), **found}

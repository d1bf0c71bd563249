"""Turn a decorated function into an algorithm: first its declarations, then its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from optgen.contract.states import AT_LEAST_FLOAT32
from optgen.ir.algorithm import Algorithm, State
from optgen.spec.elementwise_functions import (
    check_decorator_and_name,
    check_lists_and_hypers,
    check_ops_are_elementwise,
    is_elementwise,
    list_roles,
    lists_of,
)
from optgen.spec.extra_inputs import check_inputs
from optgen.spec.literals import BOOLEAN, STRINGS, TEXT, Option, one_of, options
from optgen.spec.quantized_states import check_quantized_rule
from optgen.spec.random_calls import number_calls
from optgen.spec.rank import check_rank
from optgen.spec.require_conditions import check_defaults, read_require, split_requires
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
from optgen.spec.signature import Signature
from optgen.spec.source import Source
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
        algorithm = _on_device(algorithm, scalars_from_reductions)
    if with_rule.is_function:
        check_lists_and_hypers(source, with_rule, scope, node)
        check_ops_are_elementwise(source, with_rule)
    check_gradient(source, with_rule, node)
    check_device_scalars(source, with_rule)
    check_shared_values(source, with_rule)
    check_quantized_rule(source, with_rule)
    return with_rule if with_rule.is_function else _mark_written_states(with_rule, scope)


def _on_device(algorithm: Algorithm, symbols: Collection[str]) -> Algorithm:
    """Return the algorithm with these scalar states on the device."""
    states = (replace(s, on_device=s.on_device or s.symbol in symbols) for s in algorithm.states)
    return replace(algorithm, states=tuple(states))


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


def _mark_written_states(algorithm: Algorithm, scope: Scope) -> Algorithm:
    """Return the algorithm with `written` set on the states that a statement writes, else unset."""
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

"""Lower to what a user imports: an optimizer class, or a function for an `@elementwise` rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optgen.ir.algorithm import Algorithm, ModeProgram
from optgen.lowerings.lowering import Lowering
from optgen.lowerings.optimizer.constructor import (
    Argument,
    arguments,
    checks,
    group_keys,
    param_checks,
)
from optgen.lowerings.optimizer.doc import docstring, function_docstring
from optgen.lowerings.optimizer.rule_text import derived_rule_of, rule_of
from optgen.lowerings.python import literals
from optgen.lowerings.python.functions import list_names
from optgen.lowerings.python.literals import annotation, literal
from optgen.passes.prepare_rule import use_printed_names


def optimizer_context(algorithm: Algorithm, base: Algorithm | None = None) -> Mapping[str, Any]:
    """Return the template's variables; `base` is the base of a derived algorithm."""
    positional, keyword_only = arguments(algorithm)
    return {
        "algorithm": algorithm,
        "base": base,
        "parent": _parent(algorithm, base),
        "docstring": literals.docstring(docstring(algorithm, [*positional, *keyword_only])),
        "rule": rule_of(algorithm) if base is None else derived_rule_of(algorithm, base),
        "programs": [_program(algorithm, program) for program in algorithm.programs],
        "positional": positional,
        "keyword_only": keyword_only,
        "checks": checks(algorithm, base),
        "param_checks": param_checks(algorithm, base),
        "shared": ", ".join(literal(s.key) for s in algorithm.states if s.eager),
        "defaults": _defaults(algorithm),
        "base_arguments": {} if base is None else _base_arguments(algorithm, base),
    }


def _parent(algorithm: Algorithm, base: Algorithm | None) -> str:
    if base is not None:
        return base.name
    mode_classes = ["ModeOptimizer"] if algorithm.programs else []
    input_classes = ["InputOptimizer"] if any(algorithm.extra_inputs()) else []
    return ", ".join(mode_classes + input_classes) or "GeneratedOptimizer"


def _program(algorithm: Algorithm, program: ModeProgram) -> tuple[str, str, str]:
    """Return a program's mode, its name, and the keys of its lists as Python text.

    A list that is neither the parameter nor a state gets a copy of the first list.
    """
    keys = {algorithm.param: "param", **{s.symbol: s.key for s in algorithm.states}}
    function = program.function
    copy_of_first = f"copy of {keys[function.lists[0]]}"
    return (
        program.mode,
        function.name,
        literal(tuple(keys.get(name, copy_of_first) for name in function.tensors)),
    )


def _defaults(algorithm: Algorithm) -> dict[str, str]:
    """Return each key of the group, and the constructor's expression for its value."""
    values = {key: key for key in group_keys(algorithm)}
    for hyper in algorithm.hypers:
        if hyper.set_by_step:
            continue
        if hyper.fixed:
            values[hyper.name] = literal(hyper.default)
        elif hyper.type == "tuple" and hyper.tensor != "never":
            item = "x.squeeze() if isinstance(x, Tensor) and x.ndim else x"
            values[hyper.name] = f"tuple({item} for x in {hyper.name})"
    return values


def _base_arguments(algorithm: Algorithm, base: Algorithm) -> dict[str, str]:
    """Return the arguments that a derived class passes to its base's constructor."""
    values = _defaults(algorithm)
    positional, keyword_only = arguments(base)
    fixed = {h.name for h in algorithm.hypers if h.fixed}
    names = [argument.name for argument in (*positional, *keyword_only)]
    return {name: values[name] if name in fixed else name for name in names}


def function_context(algorithm: Algorithm) -> Mapping[str, Any]:
    """Return the template's variables.

    `lists` and `hypers` are the arguments, in the author's order; `columns` are the same lists in
    the order of the rule's tensors.
    """
    columns = (algorithm.param, algorithm.grad, *(state.symbol for state in algorithm.states))
    plural_names = dict(zip(columns, list_names(use_printed_names(algorithm)), strict=True))
    hypers = [Argument(h.name, annotation(h), literal(h.default)) for h in algorithm.hypers]
    lists = {name: plural_names[name] for name in algorithm.lists}
    return {
        "algorithm": algorithm,
        "docstring": literals.docstring(function_docstring(algorithm, lists, hypers)),
        "rule": rule_of(algorithm),
        "lists": list(lists.values()),
        "columns": list(plural_names.values()),
        "hypers": hypers,
        "checks": checks(algorithm, base=None),
    }


OPTIMIZER = Lowering(
    name="optimizer",
    filename="__init__.py",
    template="optimizer.py.jinja",
    lower=optimizer_context,
    content="optimizer",
)
FUNCTION = Lowering(
    name="function",
    filename="__init__.py",
    template="function.py.jinja",
    lower=function_context,
    content="function",
)

"""A spec file to algorithms: read from the syntax tree, nothing in the file is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optgen.ir.algorithm import Algorithm, Require
from optgen.ir.nodes import Program
from optgen.spec.declare import Spec
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.literals import literal
from optgen.spec.scope import Scope
from optgen.spec.signature import Signature
from optgen.spec.source import Source
from optgen.spec.statements import Statements

_OPTIONS = ("paper", "base", "keywords", "group", "gradient", "sparse_hint")
_GRADIENTS = ("dense", "rows", "sparse_only")


def read_spec(what: Path | str | Spec) -> tuple[Algorithm, ...]:
    """Every algorithm of a spec file (or of one decorated function), in the file's order.

    Raises:
        SpecError: the first thing in it that is not the language, with its place and a hint.
        OSError: the file cannot be opened.
    """
    if isinstance(what, Spec):
        return _read(Source(what.source, what.file, what.line), module_name(what.name))
    path = Path(what)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        source = Source("", str(what))
        source.error_at(source.place(ast.Pass()), f"this is not Python: {error}", "is it text?")
    return _read(Source(text, str(what)), path.stem)


def read_specs(paths: Iterable[Path]) -> tuple[Algorithm, ...]:
    """Every algorithm of several files; two with one name are an error at the second."""
    seen: dict[str, Algorithm] = {}
    for path in paths:
        for algorithm in read_spec(path):
            other = seen.get(algorithm.name)
            if other is not None:
                raise SpecError(
                    algorithm.place,
                    f"two specs are called `{algorithm.name}`",
                    f"the other one: {other.place}",
                    algorithm.source,
                )
            seen[algorithm.name] = algorithm
    return tuple(seen.values())


def module_name(name: str) -> str:
    """The snake_case word for a class name: SparseAdam -> sparse_adam, AdamW -> adamw."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])(?=[a-z])", r"_\1", name).lower()


def _read(source: Source, module: str) -> tuple[Algorithm, ...]:
    tree = source.parse()
    constants: dict[str, Any] = {}
    helpers: dict[str, ast.FunctionDef] = {}
    specs: list[ast.FunctionDef] = []
    for node in tree.body:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="optgen.spec"):
                pass
            case ast.ImportFrom(module="__future__"):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                constants[name] = literal(value, source, constants)
            case ast.FunctionDef(decorator_list=[]):
                helpers[node.name] = node
            case ast.FunctionDef():
                specs.append(node)
            case _:
                source.error(
                    node,
                    f"`{source.quote(node).split()[0]}` has no place in a spec file",
                    "allowed: from optgen.spec import …, constants, helper functions, @optimizer",
                )
    if not specs:
        source.error(tree, "no spec in this file", "decorate a function with @optimizer(paper=…)")
    read = tuple(_algorithm(source, module, node, constants, helpers) for node in specs)
    if len({a.name for a in read}) < len(read):
        source.error(specs[-1], f"two specs are called `{specs[-1].name}`", "rename one of them")
    return read


def _algorithm(
    source: Source,
    module: str,
    node: ast.FunctionDef,
    constants: Mapping[str, Any],
    helpers: Mapping[str, ast.FunctionDef],
) -> Algorithm:
    signature = Signature(source, constants, node)
    param, grad, step = signature.inputs()
    algorithm = Algorithm(
        name=node.name,
        module=module,
        doc=ast.get_docstring(node) or "",
        states=signature.states(),
        hypers=signature.hypers(),
        rule=(),
        param=param,
        grad=grad,
        step=step,
        source=source.text
        if source.first_line == 1
        else "\n" * (source.first_line - 1) + source.text,
        place=source.place(node),
        **_decorator(source, node, constants),
    )
    if not algorithm.doc:
        source.error(node, f"`{node.name}` has no docstring", "say in one line what it is")
    _check_references(source, algorithm)
    scope = Scope(algorithm, constants, helpers)
    reader = Statements(source, scope)
    body, required = _split_requires(node.body)
    requires = tuple(_require(source, reader, call) for call in required)
    rule = reader.rule(body)
    algorithm = replace(algorithm, rule=rule, requires=requires)
    _check_rule(source, algorithm, scope, node, rule)
    return algorithm


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
    options: dict[str, Any] = {"paper": ""}
    for keyword in keywords:
        if keyword.arg not in _OPTIONS:
            hint = did_you_mean(str(keyword.arg), _OPTIONS, f"options: {', '.join(_OPTIONS)}")
            source.error(keyword.value, f"unknown option `{keyword.arg}`", hint)
        options[str(keyword.arg)] = literal(keyword.value, source, constants)
    if options.get("gradient", "dense") not in _GRADIENTS:
        hint = f"one of {', '.join(_GRADIENTS)}"
        source.error(node.decorator_list[0], f"gradient {options['gradient']!r} is not known", hint)
    return options


def _check_references(source: Source, algorithm: Algorithm) -> None:
    """`when` names a hyperparameter of this spec, `init` a number or one of them."""
    names = [h.name for h in algorithm.hypers]
    for state in algorithm.states:
        for name in ((state.when or "").removeprefix("not "), state.init):
            if isinstance(name, str) and name not in ("", "p", *names):
                hint = did_you_mean(name, names, f"hyperparameters: {', '.join(names)}")
                source.error_at(state.place, f"unknown hyperparameter `{name}`", hint)


def _split_requires(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.Call]]:
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


def _require(source: Source, reader: Statements, call: ast.Call) -> Require:
    match call.args:
        case [condition, ast.Constant(value=str() as message)] if not call.keywords:
            test = reader.condition(condition)
            reader.check_branch(condition, test)
            return Require(test, message, source.place(call))
    source.error(call, "`require` takes a condition and a message", 'require(lr > 0, "…")')


def _check_rule(
    source: Source, algorithm: Algorithm, scope: Scope, node: ast.FunctionDef, rule: Program
) -> None:
    """A derived spec has no body; any other writes the parameter and every state, and reads each."""
    if algorithm.base is not None:
        if rule or algorithm.states:
            source.error(
                node,
                f"`{node.name}` derives from `{algorithm.base}`, so its rule is that one's",
                "leave the body and the states out",
            )
        return
    if algorithm.param not in scope.written:
        source.error(
            node, f"the rule never writes `{algorithm.param}`", f"{algorithm.param} = …, the update"
        )
    for state in algorithm.states:
        if state.symbol not in scope.read:
            source.error_at(state.place, f"state `{state.symbol}` is never used", "leave it out")
        if state.symbol not in scope.written:
            hint = f"assign it: {state.symbol} = …"
            source.error_at(state.place, f"state `{state.symbol}` is never written", hint)
    for hyper in algorithm.hypers:
        used = hyper.name in scope.read or any(
            (s.when or "").removeprefix("not ") == hyper.name for s in algorithm.states
        )
        if not used:
            source.error_at(hyper.place, f"hyperparameter `{hyper.name}` is never used")

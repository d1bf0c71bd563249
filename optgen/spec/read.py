"""A spec file to algorithms: read from the syntax tree, nothing in the file is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Place
from optgen.ir.words import CALLABLE
from optgen.spec.algorithm import read_algorithm
from optgen.spec.declare import Spec
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.literals import literal
from optgen.spec.missing import MISSING
from optgen.spec.names import DECLARATIONS, YIELDING, is_snake_case, why_taken, why_used
from optgen.spec.source import Source

_LANGUAGE = ("Spec", *DECLARATIONS, *CALLABLE)


def read_spec(what: Path | str | Spec) -> tuple[Algorithm, ...]:
    """Every algorithm of a spec file (or of one decorated function), in the file's order.

    Raises:
        SpecError: the first thing in it that is not the language, with its place and a hint.
        OSError: the file cannot be opened.
    """
    if isinstance(what, Spec):
        source = Source(what.source, what.file, what.line, is_part=True)
        return _read(source, module_name(what.name))
    path = Path(what)
    check_file_name(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        source = Source("", str(what))
        source.error_at(source.place(ast.Pass()), f"this is not Python: {error}", "is it text?")
    return _read(Source(text, str(what)), path.stem)


def check_file_name(path: Path) -> None:
    """Raise a SpecError for a file name that no Python module may have."""
    if not is_snake_case(path.stem):
        message = "the file name must be one snake_case word that is no keyword"
        hint = f"generated modules are called after it: {_suggestion(path.stem)}.py"
        raise SpecError(Place(str(path), 1, 1), message, hint)


def _suggestion(stem: str) -> str:
    words = re.findall("[a-z0-9]+", module_name(stem))
    name = "_".join(words).lstrip("0123456789_")
    return name if is_snake_case(name) else f"my_{name}".rstrip("_")


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
    try:
        return _read_tree(source, module, source.parse())
    except RecursionError:
        place = Place(source.file, source.first_line, 1)
        source.error_at(place, "an expression here is nested too deeply", "give parts of it names")


def _read_tree(source: Source, module: str, tree: ast.Module) -> tuple[Algorithm, ...]:
    constants: dict[str, Any] = {}
    helpers: dict[str, ast.FunctionDef] = {}
    specs: list[ast.FunctionDef] = []
    for node in tree.body:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom(module="optgen.spec", level=0, names=names):
                _check_imports(source, names)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _check_new(source, node, name, {*constants, *helpers})
                constants[name] = literal(value, source, constants)
            case ast.FunctionDef(decorator_list=[], name=name):
                _check_new(source, node, name, {*constants, *helpers})
                helpers[name] = node
            case ast.FunctionDef():
                specs.append(node)
            case _:
                source.error(
                    node,
                    f"`{source.quote(node).split()[0]}` has no place in a spec file",
                    "allowed: from optgen.spec import …, constants, helper functions, @optimizer, "
                    "@elementwise",
                )
    if not specs:
        source.error(tree, "no spec in this file", "decorate a function with @optimizer(paper=…)")
    _check_words(source, tree)
    for position, spec in enumerate(specs):
        if spec.name in {other.name for other in specs[:position]}:
            source.error(spec, f"two specs are called `{spec.name}`", "rename one of them")
        _check_new(source, spec, spec.name, {*constants, *helpers})
        if why_used(spec.name):
            source.error(spec, f"`{spec.name}` {why_used(spec.name)}", "choose another name")
    return tuple(read_algorithm(source, module, node, constants, helpers) for node in specs)


def _check_imports(source: Source, names: list[ast.alias]) -> None:
    """A spec file imports names that the language has, under those names."""
    for alias in names:
        if alias.name not in ("*", *_LANGUAGE):
            known = f"it has {', '.join(_LANGUAGE)}"
            hint = MISSING.get(alias.name) or (
                known if alias.name in MISSING else did_you_mean(alias.name, _LANGUAGE, known)
            )
            source.error(alias, f"the language has no `{alias.name}`", hint)
        if alias.asname is not None:
            hint = f"from optgen.spec import {alias.name}"
            source.error(alias, f"`{alias.name}` is imported under its own name", hint)


def _check_words(source: Source, tree: ast.Module) -> None:
    """A file imports the words it uses; the text of one function has its imports elsewhere.

    `norm` and the like are words where they are called, and then nothing else of the file.
    """
    nodes = [node for top in tree.body for node in ast.walk(top)]
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    for node in nodes:
        if _given_name(node) in YIELDING & called:
            message = f"`{_given_name(node)}` shadows a word of the language"
            source.error(node, message, "choose another name, or do not call the word")
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "optgen.spec"]
    imported = {alias.name for node in imports for alias in node.names}
    if "*" in imported or (source.is_part and not imports):
        return
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in _LANGUAGE and node.id not in imported:
            if node.id in YIELDING and node.id not in called:
                continue
            hint = f"from optgen.spec import {node.id}"
            source.error(node, f"`{node.id}` is not imported", hint)


def _given_name(node: ast.AST) -> str | None:
    """The name that a node gives to something of the file."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
            return name
    return None


def _check_new(source: Source, node: ast.stmt, name: str, taken: set[str]) -> None:
    """A name of the file is no word, and is given once."""
    why = "is defined twice in this file" if name in taken else why_taken(name)
    if why:
        source.error(node, f"`{name}` {why}", "choose another name")

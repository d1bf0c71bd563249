"""Read a spec file into algorithms, from its syntax tree. Nothing in the file is executed."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Place
from optgen.ir.ops import CALLABLE_OPS
from optgen.spec.declare import Spec
from optgen.spec.errors import SpecError, did_you_mean, located_errors
from optgen.spec.literals import literal
from optgen.spec.programs import is_program, names_read_by, with_programs
from optgen.spec.read_algorithm import read_algorithm
from optgen.spec.require_conditions import check_defaults
from optgen.spec.reserved_names import DECLARATIONS, SHADOWABLE, why_taken, why_taken_as_spec_name
from optgen.spec.semantic_checks import order_error
from optgen.spec.source import Source, module_name, read_file
from optgen.spec.substitutes import NO_SUBSTITUTE, UNSUPPORTED, statement_hint

_ALLOWED_STATEMENTS = (
    "allowed: from optgen.spec import …, constants, helper functions, @optimizer, @elementwise"
)
_LANGUAGE_NAMES = ("Spec", *DECLARATIONS, *CALLABLE_OPS)


def read_spec(spec: Path | str | Spec) -> tuple[Algorithm, ...]:
    """Return every algorithm of a spec file, or of one decorated function, in the file's order.

    Raises:
        SpecError: the first mistake in the spec, with its place and a hint.
        InternalError: a defect of optgen, with the place in the spec where it happened.
        OSError: the file cannot be opened.
    """
    if isinstance(spec, Spec):
        source = Source(spec.source, spec.file, spec.line, is_excerpt=True)
        if not (spec.name.isidentifier() and spec.name.isascii()):
            message = f"`{spec.name}` is not a class name in ASCII"
            source.error_at(Place(spec.file, spec.line, 1), message, "def MyRule(p, g, …):")
        return _read(source, module_name(spec.name))
    path = Path(spec)
    return _read(Source(read_file(path), str(spec)), path.stem)


def read_specs(paths: Iterable[Path]) -> tuple[Algorithm, ...]:
    """Return every algorithm of several files.

    Raises:
        SpecError: as `read_spec`; or two algorithms have the same name.
    """
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


def _read(source: Source, module: str) -> tuple[Algorithm, ...]:
    start = Place(source.file, source.first_line, 1)
    with located_errors(start, source.padded_text, source.place):
        return _read_tree(source, module, source.parse())


def _read_tree(source: Source, module: str, tree: ast.Module) -> tuple[Algorithm, ...]:
    constants, helpers, decorated = _top_level(source, tree)
    source.check_depth(tree)
    source.check_strings(tree)
    _check_language_names(source, tree)
    _check_spec_names(source, decorated, (constants, helpers))
    decorated_names = {node.name for node in decorated}
    programs = [node for node in decorated if is_program(node, decorated_names)]
    algorithms = [
        read_algorithm(source, module, node, constants, helpers, names_read_by(programs, node.name))
        for node in decorated
        if node not in programs
    ]
    return with_programs(source, algorithms, programs, constants, helpers)


def _top_level(
    source: Source, tree: ast.Module
) -> tuple[dict[str, Any], dict[str, ast.FunctionDef], list[ast.FunctionDef]]:
    """Return the constants, the helpers and the decorated functions of a file.

    Raises:
        SpecError: the file holds something else, or no decorated function.
    """
    constants: dict[str, Any] = {}
    helpers: dict[str, ast.FunctionDef] = {}
    decorated: list[ast.FunctionDef] = []
    check_statements(source, tree)
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                _check_new(source, node, name, (constants, helpers))
                constants[name] = literal(value, source, constants)
            case ast.FunctionDef(decorator_list=[], name=name):
                _check_new(source, node, name, (constants, helpers))
                helpers[name] = node
            case ast.FunctionDef():
                _check_no_modifier(source, node)
                decorated.append(node)
    if not decorated:
        source.error(tree, "no spec in this file", "decorate a function with @optimizer(paper=…)")
    return constants, helpers, decorated


def check_statements(source: Source, tree: ast.Module) -> None:
    """Check that a file holds only imports of the language, constants and functions.

    Nothing in a spec runs. So a file may hold nothing that Python would run when it imports it.
    """
    for node in tree.body:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom(module="optgen.spec", level=0, names=names):
                _check_imports(source, names)
            case ast.Assign(targets=[ast.Name()]):
                pass
            case ast.FunctionDef():
                _check_annotations(source, node)
            case _:
                message = f"`{source.quote(node).split()[0]}` is not allowed in a spec file"
                source.error(node, message, statement_hint(node) or _ALLOWED_STATEMENTS)


def _check_annotations(source: Source, function: ast.FunctionDef) -> None:
    """Refuse annotations that hold code. A plain name, such as `Any`, says nothing to optgen."""
    annotations = [n.annotation for n in ast.walk(function) if isinstance(n, ast.arg)]
    for node in (*annotations, function.returns):
        if not isinstance(node, ast.Name | ast.Constant | None):
            message = f"the annotation `{source.quote(node)}` is not a name"
            source.error(node, message, "leave it out: a spec says what its names are")


def _check_spec_names(
    source: Source,
    decorated: Sequence[ast.FunctionDef],
    other_names: tuple[Container[str], Container[str]],
) -> None:
    """Check that the names of decorated functions are allowed, unused, and different."""
    for position, node in enumerate(decorated):
        if node.name in {other.name for other in decorated[:position]}:
            source.error(node, f"two specs are called `{node.name}`", "rename one of them")
        _check_new(source, node, node.name, other_names)
        problem = why_taken_as_spec_name(node.name)
        if problem:
            source.error(node, f"`{node.name}` {problem}", "choose another name")


def _check_no_modifier(source: Source, node: ast.FunctionDef) -> None:
    """Refuse a modifier, which only `optgen.compose` reads."""
    for decorator in node.decorator_list:
        match decorator:
            case ast.Name(id="modifier") | ast.Call(func=ast.Name(id="modifier")):
                hint = f"optgen compose adamw {source.file} prints an optimizer with it"
                source.error(node, f"`{node.name}` is a modifier, and no optimizer", hint)


def _check_imports(source: Source, names: list[ast.alias]) -> None:
    """Check that a file imports only names of the language, and renames none."""
    for alias in names:
        if alias.name not in ("*", *_LANGUAGE_NAMES):
            hint = UNSUPPORTED.get(alias.name) or (
                NO_SUBSTITUTE
                if alias.name in UNSUPPORTED
                else did_you_mean(alias.name, _LANGUAGE_NAMES, NO_SUBSTITUTE)
            )
            source.error(alias, f"the language has no `{alias.name}`", hint)
        if alias.asname is not None:
            hint = f"from optgen.spec import {alias.name}"
            source.error(alias, f"`{alias.name}` must be imported under its own name", hint)


def _check_language_names(source: Source, tree: ast.Module) -> None:
    """Check that a file imports the names of the language that it uses.

    The text of a single function need not import them: its imports are elsewhere in the file. A
    name such as `norm` is an op if the file calls it. The file may then use it for nothing else.
    """
    nodes = [node for top in tree.body for node in ast.walk(top)]
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    for node in nodes:
        if _bound_name(node) in SHADOWABLE & called:
            message = f"`{_bound_name(node)}` shadows a name of the language"
            hint = f"choose another name, or do not call {_bound_name(node)}"
            source.error(node, message, hint)
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "optgen.spec"]
    imported = {alias.name for node in imports for alias in node.names}
    if "*" in imported or (source.is_excerpt and not imports):
        return
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in _LANGUAGE_NAMES and node.id not in imported:
            if node.id in SHADOWABLE and node.id not in called:
                continue
            hint = f"from optgen.spec import {node.id}"
            source.error(node, f"`{node.id}` is not imported", hint)


def _bound_name(node: ast.AST) -> str | None:
    """Return the name that a node binds, or None."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
            return name
    return None


def _check_new(
    source: Source, node: ast.stmt, name: str, other_names: tuple[Container[str], Container[str]]
) -> None:
    """Check that a top-level name of the file is allowed, and defined once."""
    is_defined_twice = any(name in defined_names for defined_names in other_names)
    problem = "is defined twice in this file" if is_defined_twice else why_taken(name)
    if problem:
        source.error(node, f"`{name}` {problem}", "choose another name")


def read_base(algorithm: Algorithm, specs: Path) -> Algorithm | None:
    """Return the algorithm that a spec derives from, or None if it has no `base=`.

    Raises:
        SpecError: no spec in the folder has that name; or the base is itself derived; or the
            derived spec does not fit: it declares a hyperparameter that the base lacks, leaves
            one out of `keywords` or `group`, or has a default that violates a `require`.
    """
    if algorithm.base is None:
        return None
    likely_file = specs / f"{module_name(algorithm.base)}.py"  # reading all specs takes a second
    base = _optimizers([likely_file] if likely_file.is_file() else []).get(algorithm.base)
    if base is None:
        catalogue = _optimizers(sorted(specs.glob("[!_]*.py")))
        base = catalogue.get(algorithm.base)
    if base is None:
        hint = did_you_mean(algorithm.base, catalogue, f"there are {', '.join(catalogue)}")
        message = f"no algorithm is called `{algorithm.base}`"
        raise SpecError(algorithm.place, message, hint, algorithm.source)
    if base.base is not None:
        message = f"`{base.name}` is itself derived from another spec"
        raise SpecError(algorithm.place, message, f'base="{base.base}"', algorithm.source)
    for hyper in algorithm.hypers:
        if base.hyper(hyper.name) is None:
            base_names = [h.name for h in base.hypers]
            raise SpecError(
                hyper.place,
                f"`{base.name}` has no hyperparameter `{hyper.name}`",
                did_you_mean(hyper.name, base_names, f"it has {', '.join(base_names)}"),
                algorithm.source,
            )
    _check_with_base(algorithm, base)
    return base


def _optimizers(paths: Iterable[Path]) -> dict[str, Algorithm]:
    """Return the optimizers of these files by name, without functions over lists."""
    return {a.name: a for path in paths for a in read_spec(path) if not a.is_function}


def _check_with_base(algorithm: Algorithm, base: Algorithm) -> None:
    """Check a derived spec with its base: the order of arguments and group keys, and defaults."""
    hypers = [algorithm.hyper(h.name) or h for h in base.hypers]
    error = order_error(algorithm, hypers)
    if error:
        raise SpecError(algorithm.place, *error, algorithm.source)
    if algorithm.group not in ((), base.group):
        message = f"a derived spec has the group keys of `{base.name}`, in its order"
        raise SpecError(algorithm.place, message, "leave group= out", algorithm.source)
    check_defaults(algorithm.requires, hypers, algorithm.source)
    check_defaults(base.requires, hypers, base.source)

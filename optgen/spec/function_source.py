"""Extract the text of one function, with the constants and helpers that it uses, from its file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator

Definition = ast.Assign | ast.FunctionDef


def source_of_function(function: Callable[..., None]) -> tuple[str, int]:
    """Return the text of a function with the definitions it uses, and the text's first line number.

    Lines between these definitions become empty, so that every line keeps its number.

    Raises:
        OSError: Python cannot find the text of the function.
    """
    function_lines, first_line = inspect.getsourcelines(function)
    if function_lines[0][:1] in " \t":  # nested in a function, so its file is no spec file
        return "".join(function_lines), first_line
    lines, _ = inspect.findsource(function)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a cell may hold %magic lines
        return "".join(function_lines), first_line
    spans = [range(first_line, first_line + len(function_lines))]
    spans += [
        range(_first_line(node), (node.end_lineno or 0) + 1)
        for node in _needed_definitions(tree, first_line)
    ]
    kept_lines = {line for span in spans for line in span}
    line_numbers = range(min(kept_lines), max(kept_lines) + 1)
    return "".join(lines[n - 1] if n in kept_lines else "\n" for n in line_numbers), min(kept_lines)


def _needed_definitions(tree: ast.Module, line: int) -> list[Definition]:
    """Return the programs of the function at a line, and all definitions that are needed.

    A definition is needed if the function, one of its programs or a needed definition reads it.
    """
    definitions = dict(_definitions(tree))
    waiting = [n for n in tree.body if _first_line(n) <= line <= (n.end_lineno or 0)]
    needed_by_name: dict[str, Definition] = {
        n.name: n for node in waiting for n in _programs(tree, node)
    }
    waiting += needed_by_name.values()
    while waiting:
        for name in _free_names(waiting.pop()):
            if name in definitions and name not in needed_by_name:
                needed_by_name[name] = definitions[name]
                waiting.append(definitions[name])
    return list(needed_by_name.values())


def _programs(tree: ast.Module, optimizer: ast.stmt) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a file that are decorated with an attribute of an optimizer."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(decorator_list=[ast.Attribute(value=ast.Name(id=name)), *_]):
                if isinstance(optimizer, ast.FunctionDef) and name == optimizer.name:
                    yield node


def _first_line(node: ast.stmt) -> int:
    """Return the first line of a definition, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Yield the name and node of each constant and each undecorated function of a file."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, node
            case ast.FunctionDef(decorator_list=[], name=name):
                yield name, node


def _free_names(node: ast.AST) -> set[str]:
    """Return the names that a definition reads and does not bind."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    bound = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    bound |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return {n.id for n in names} - bound

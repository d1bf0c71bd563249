"""Rename what belongs to a modifier, so that its names differ from all others of a composition."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from optgen.spec.composition.parts import Part


class _Rename(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.get(node.arg, node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.names.get(node.name, node.name)
        return self.generic_visit(node)


def renamed(part: Part, names: Mapping[str, str]) -> Part:
    """Return a part with other names; the text of its declarations stays."""
    part = part.copy()
    rename = _Rename(names)
    for node in (*part.definitions, *part.programs):
        rename.visit(node)
    own_name = part.node.name
    rename.visit(part.node)
    part.node.name = own_name
    weights, step, guard = (names.get(n, n) for n in (part.weights, part.step, part.guard))
    return replace(part, weights=weights, step=step, guard=guard)


def own_names(part: Part) -> set[str]:
    """Return the names that a part defines: states, variables, constants and helpers."""
    names = {argument.arg for argument, _ in part.states}
    for node in part.definitions:
        names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _is_store(n)}
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names | part.assigned - set(part.inputs)


def all_names(part: Part) -> set[str]:
    """Return every name that occurs in a part."""
    nodes = [n for top in (part.node, *part.definitions, *part.programs) for n in ast.walk(top)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def unused(name: str, taken: set[str]) -> str:
    """Return a name, or the name with the first free number; it is taken from now on."""
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    taken.add(found)
    return found


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)

"""Rename what a part defines, so that its names differ from the names of all other parts."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from optgen.ir.ops import CALLABLE_OPS
from optgen.spec.composition.parts import Part
from optgen.spec.reserved_names import DECLARATIONS


class _Rename(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.copy_location(ast.arg(self.names.get(node.arg, node.arg)), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self.names.get(node.name, node.name)
        return self.generic_visit(node)


def renamed(part: Part, names: Mapping[str, str]) -> Part:
    """Return a part with other names. Checkpoint keys do not change.

    The arguments and variables of a helper are local, and keep their names.
    """
    part = part.copy()
    for node in part.definitions:
        local_names = _bound_names(node) if isinstance(node, ast.FunctionDef) else set()
        _Rename({name: new for name, new in names.items() if name not in local_names}).visit(node)
    for node in part.programs:
        _Rename(names).visit(node)
    own_name = part.node.name
    _Rename(names).visit(part.node)
    part.node.name = own_name
    weights, step, guard = (names.get(n, n) for n in (part.weights, part.step, part.guard))
    return replace(part, weights=weights, step=step, guard=guard)


def _bound_names(function: ast.FunctionDef) -> set[str]:
    """Return the names of a function's arguments and variables."""
    nodes = list(ast.walk(function))
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {n.id for n in nodes if isinstance(n, ast.Name) and _is_store(n)}


def own_names(part: Part) -> set[str]:
    """Return the names that a part defines: states, variables, constants, helpers and programs."""
    names = {argument.arg for argument, _ in part.states}
    for node in part.definitions:
        match node:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    for program in part.programs:
        arguments = {n.arg for n in ast.walk(program) if isinstance(n, ast.arg)}
        names |= {program.name, *(_bound_names(program) - arguments)}
    return names | part.assigned_names - set(part.inputs)


def free_names(part: Part) -> dict[str, ast.Name]:
    """Return the names that a part reads and does not define, each with one of its nodes."""
    defined = own_names(part) | {*DECLARATIONS, *CALLABLE_OPS}
    free: dict[str, ast.Name] = {}
    helpers = [node for node in part.definitions if isinstance(node, ast.FunctionDef)]
    for function in (part.node, *helpers, *part.programs):
        defined_here = defined | _bound_names(function)
        nodes = (node for stmt in function.body for node in ast.walk(stmt))
        for node in nodes:
            if isinstance(node, ast.Name) and node.id not in defined_here:
                free.setdefault(node.id, node)
    return free


def all_names(part: Part) -> set[str]:
    """Return every name that occurs in a part."""
    nodes = [n for top in (part.node, *part.definitions, *part.programs) for n in ast.walk(top)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def unused_name(name: str, used_names: set[str]) -> str:
    """Return the name, or the name with the first free number. Add the result to `used_names`."""
    number = 1
    candidate = name
    while candidate in used_names:
        number += 1
        candidate = f"{name}{number}"
    used_names.add(candidate)
    return candidate


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)

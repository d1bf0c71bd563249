"""Guard assignments: while a condition is false, the assigned name keeps its value."""

from __future__ import annotations

import ast
from collections.abc import Container


class AssignmentGuard(ast.NodeTransformer):
    """Rewriter of assignments to some names: `m = x` becomes `m = where(condition, x, m)`."""

    def __init__(self, names: Container[str], condition: str) -> None:
        self.names, self.condition = names, condition

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                node.value = self._guarded(name, value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if len(names) == len(targets) == len(values):  # else the spec reader refuses it
                    guarded = map(self._guarded, names, values)
                    node.value = ast.Tuple([*guarded], ast.Load())
        return node

    def _guarded(self, name: str, value: ast.expr) -> ast.expr:
        if name not in self.names:
            return value
        operand_names = ("where", self.condition, name)
        where, condition, old = (ast.Name(each, ast.Load()) for each in operand_names)
        return ast.Call(where, [condition, value, old], [])

"""Take flags out of an optimizer: each is false, so one arm of its branches remains."""

from __future__ import annotations

import ast
from collections.abc import Collection

from optgen.spec.composition.parts import Part
from optgen.spec.composition.without_unread import without_hypers, without_unread


def without_flags(part: Part, flags: Collection[str]) -> Part:
    """Return an optimizer without flags that are false, and without what exists only with them."""
    part = without_hypers(part, flags)
    arguments = part.node.args
    kept_states = [a for a in part.states if part.existence_condition(a[0].arg) not in flags]
    num_inputs = len(arguments.defaults) - len(part.states)
    arguments.args = [argument for argument, _ in kept_states]
    arguments.defaults[num_inputs:] = [declared for _, declared in kept_states]
    part.node.body = _WithoutFlags(flags).statements(part.node.body)
    return without_unread(part)


class _WithoutFlags(ast.NodeTransformer):
    """Transformer that computes every condition as far as the flags decide it."""

    def __init__(self, flags: Collection[str]) -> None:
        self.flags = flags

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements with only the arms that may run."""
        return [kept for stmt in body for kept in self._kept(self.visit(stmt))]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _constant(False, node) if node.id in self.flags else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        value = _truth(node.operand) if isinstance(node.op, ast.Not) else None
        return node if value is None else _constant(not value, node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        deciding = isinstance(node.op, ast.Or)
        if deciding in map(_truth, node.values):
            return _constant(deciding, node)
        node.values = [each for each in node.values if _truth(each) is None]
        return node if len(node.values) > 1 else (*node.values, _constant(not deciding, node))[0]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("where"), [condition, a, b], []):
                value = _truth(condition)
                return node if value is None else (a if value else b)
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self.visit(node.test)
        node.body, node.orelse = self.statements(node.body), self.statements(node.orelse)
        return node

    def _kept(self, stmt: ast.stmt) -> list[ast.stmt]:
        """Return the statements that remain of one; an arm without statements goes."""
        if not isinstance(stmt, ast.If):
            return [stmt]
        value = _truth(stmt.test)
        if value is not None:
            return stmt.body if value else stmt.orelse
        if not stmt.body and stmt.orelse:
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), stmt.test), stmt.test)
            stmt.test, stmt.body, stmt.orelse = negated, stmt.orelse, []
        return [stmt] if stmt.body else []


def _constant(value: bool, node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant(value), node)


def _truth(node: ast.expr) -> bool | None:
    """Return the value of a condition that is known; else None."""
    match node:
        case ast.Constant(bool() as value):
            return value
    return None

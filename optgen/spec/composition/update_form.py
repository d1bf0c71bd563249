"""Rewrite a rule so that it computes the update of the parameter, instead of the parameter.

`p = p - lr * m` becomes `u = -(lr * m)`, and `p + u` stands where the rule reads `p` afterwards.
Where the parameter is no term of the assigned sum, as in `p = p * c`, the update is the difference
of the new and the old parameter. Elsewhere this difference would lose digits.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from optgen.ir.ops import PROPERTIES

_READ_NO_VALUE = {*PROPERTIES, "fresh", "given", "require"}
"""Functions that do not read the values of their arguments."""


class UpdateForm:
    """Rewriter of one rule.

    `param` is the name of the parameter, `update` that of the update. `unused_names` yields names
    for new variables. `has_moved` tells whether the update may differ from 0 at this statement.
    """

    def __init__(self, param: str, update: str, unused_names: Iterable[str]) -> None:
        self.param, self.update = param, update
        self._unused_names = iter(unused_names)
        self.has_moved = False

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return a block in which the update is assigned instead of the parameter."""
        return [new for stmt in statements for new in self._statement(stmt)]

    def _statement(self, stmt: ast.stmt) -> list[ast.stmt]:
        match stmt:
            case ast.Assign(targets=[ast.Name(id=self.param)], value=value):
                return self._update_assignments(value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if self.param in names:
                    return self._one_by_one(names, values)
            case ast.If():
                return self._branch(stmt)
        return [_with_value(stmt, self.param, self._moved_param()) if self.has_moved else stmt]

    def _update_assignments(self, value: ast.expr) -> list[ast.stmt]:
        """Return the assignment of the update, given the new value of the parameter.

        Return no statement if the parameter keeps its value.
        """
        rest = _other_terms(value, self.param)
        if rest == []:  # the value is the parameter itself
            return []
        if rest is None:
            update: ast.expr = ast.BinOp(
                self._reading_moved_param(value), ast.Sub(), _read(self.param)
            )
        else:
            moved_terms = [(sign, self._reading_moved_param(term)) for sign, term in rest]
            old_update: list[tuple[int, ast.expr]] = (
                [(1, _read(self.update))] if self.has_moved else []
            )
            update = _signed_sum([*old_update, *moved_terms])
        self.has_moved = True
        return [ast.copy_location(_assignment(self.update, update), value)]

    def _one_by_one(self, names: Sequence[str], values: Sequence[ast.expr]) -> list[ast.stmt]:
        """Return the assignments that stand for the assignment of a tuple.

        All values are computed before any name other than the parameter changes.
        """
        temporaries = [(name, next(self._unused_names)) for name in names if name != self.param]
        pairs = dict(zip(names, values, strict=True))
        first_assignments = [
            _assignment(new, self._reading_moved_param(pairs[name])) for name, new in temporaries
        ]
        last_assignments = [_assignment(name, _read(new)) for name, new in temporaries]
        return [*first_assignments, *self._update_assignments(pairs[self.param]), *last_assignments]

    def _branch(self, stmt: ast.If) -> list[ast.stmt]:
        """Rewrite both arms. If one of them moves the parameter, the other has an update of 0."""
        condition, before = self._reading_moved_param(stmt.test), self.has_moved
        arms, moved = [], []
        for arm in (stmt.body, stmt.orelse):
            self.has_moved = before
            arms.append(self.block(arm))
            moved.append(self.has_moved)
        self.has_moved = any(moved)
        if self.has_moved:
            zero = ast.BinOp(ast.Constant(0), ast.Mult(), _read(self.param))
            arms = [
                arm if moves else [*arm, _assignment(self.update, copy.deepcopy(zero))]
                for arm, moves in zip(arms, moved, strict=True)
            ]
        return [ast.copy_location(ast.If(condition, arms[0] or [ast.Pass()], arms[1]), stmt)]

    def _reading_moved_param(self, value: ast.expr) -> ast.expr:
        """Return an expression that reads the moved parameter instead of the parameter."""
        return _with_value(value, self.param, self._moved_param()) if self.has_moved else value

    def _moved_param(self) -> ast.expr:
        return ast.BinOp(_read(self.param), ast.Add(), _read(self.update))


class _Replace(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_read = node.id == self.name and not isinstance(node.ctx, ast.Store)
        return ast.copy_location(copy.deepcopy(self.value), node) if is_read else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in _READ_NO_VALUE:
            return node
        return self.generic_visit(node)


def replace_name(stmt: ast.stmt, name: str, other: str) -> ast.stmt:
    """Return a statement that reads `other` instead of `name`. Calls such as `ndim(p)` stay."""
    return _with_value(stmt, name, _read(other))


class _ReplaceFresh(ast.NodeTransformer):
    def __init__(self, waiting_states: Mapping[str, str]) -> None:
        self.waiting_states = waiting_states

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="fresh"), args=[ast.Name(id=state)]):
                flag = _read(self.waiting_states[state])
                is_waiting = ast.Compare(flag, [ast.Eq()], [ast.Constant(1)])
                return ast.copy_location(is_waiting, node)
        return self.generic_visit(node)


def replace_fresh(stmt: ast.stmt, waiting_states: Mapping[str, str]) -> ast.stmt:
    """Return a statement with `m_waits == 1` in place of `fresh(m)`."""
    replaced: ast.stmt = _ReplaceFresh(waiting_states).visit(copy.deepcopy(stmt))
    return replaced


_Node = TypeVar("_Node", ast.stmt, ast.expr)


def _with_value(node: _Node, name: str, value: ast.expr) -> _Node:
    """Return a node that reads a value instead of a name."""
    replaced: _Node = _Replace(name, value).visit(copy.deepcopy(node))
    return replaced


def _read(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _assignment(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _other_terms(value: ast.expr, param: str) -> list[tuple[int, ast.expr]] | None:
    """Return the signed terms of a sum without the parameter; None if it is no term of the sum."""
    terms = list(_terms(value, 1))
    positions = [k for k, (sign, term) in enumerate(terms) if sign == 1 and _is_name(term, param)]
    if len(positions) != 1:
        return None
    return [term for k, term in enumerate(terms) if k != positions[0]]


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _terms(value: ast.expr, sign: int) -> Iterable[tuple[int, ast.expr]]:
    """Yield the terms of a sum, each after its sign."""
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _terms(left, sign)
            yield from _terms(right, sign)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield from _terms(left, sign)
            yield from _terms(right, -sign)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _terms(operand, -sign)
        case _:
            yield sign, value


def _signed_sum(terms: Sequence[tuple[int, ast.expr]]) -> ast.expr:
    """Return the sum of signed terms."""
    (sign, first), *others = terms
    total: ast.expr = first if sign > 0 else ast.UnaryOp(ast.USub(), first)
    for sign, term in others:
        total = ast.BinOp(total, ast.Add() if sign > 0 else ast.Sub(), term)
    return total

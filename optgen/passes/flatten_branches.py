"""Flatten nested branches: `if a: (if b: x)` becomes `if a and b: x`.

Some compilers vectorize a loop only if its branches are not nested. The conditions are uniform over
a tensor, so testing more of them costs nothing. Statements keep their order. A branch on a
condition whose value the compiler knows ("settled") may still contain other branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from optgen.ir.nodes import Assign, Call, Expr, If, Program, Stmt


@dataclass(frozen=True)
class BranchFlattener:
    """Flattener of nested branches.

    `is_settled` tells whether the compiler knows a condition's value.
    """

    is_settled: Callable[[Expr], bool]

    def __call__(self, program: Program) -> Program:
        """Return the program with no branch inside an unsettled branch."""
        return tuple(flat for stmt in program for flat in self._flat(stmt))

    def _flat(self, stmt: Stmt) -> Iterator[Stmt]:
        if isinstance(stmt, Assign):
            yield stmt
            return
        stmt = replace(stmt, then=self(stmt.then), orelse=self(stmt.orelse))
        if self.is_settled(stmt.condition) or not self._has_branch((*stmt.then, *stmt.orelse)):
            yield stmt
            return
        yield from self._under_condition(stmt, stmt.condition, stmt.then)
        yield from self._under_condition(stmt, Call("not", (stmt.condition,)), stmt.orelse)

    def _has_branch(self, program: Program) -> bool:
        """Tell whether a program has an unsettled branch."""
        return any(
            not self.is_settled(stmt.condition) or self._has_branch((*stmt.then, *stmt.orelse))
            for stmt in program
            if isinstance(stmt, If)
        )

    def _under_condition(self, outer: If, condition: Expr, arm: Program) -> Iterator[If]:
        """Yield an arm's statements, with each inner branch under both conditions."""
        plain_statements: list[Stmt] = []
        for stmt in arm:
            if isinstance(stmt, Assign):
                plain_statements.append(stmt)
                continue
            if plain_statements:
                yield replace(outer, condition=condition, then=tuple(plain_statements), orelse=())
                plain_statements = []
            yield from self._inner_branch(outer, condition, stmt)
        if plain_statements:
            yield replace(outer, condition=condition, then=tuple(plain_statements), orelse=())

    def _inner_branch(self, outer: If, condition: Expr, inner: If) -> Iterator[If]:
        """Yield a branch of an outer arm under both conditions."""
        if self.is_settled(inner.condition):
            arms = (
                tuple(self._under_condition(outer, condition, a))
                for a in (inner.then, inner.orelse)
            )
            then, orelse = arms
            yield replace(inner, then=then, orelse=orelse)
            return
        for arm_condition, arm in (
            (inner.condition, inner.then),
            (Call("not", (inner.condition,)), inner.orelse),
        ):
            if arm:
                both_conditions = Call("and", (condition, arm_condition))
                yield replace(inner, condition=both_conditions, then=arm, orelse=())

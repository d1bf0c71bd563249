"""if a: (if b: x else: y) becomes if a and b: x, if a and not b: y: no branch inside another.

For compilers that make a loop of vectors only of branches that stand side by side. The conditions
are the same for a whole tensor, so it costs nothing to test more of them; each statement keeps its
place. Branches that are settled when a kernel is compiled may hold others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from optgen.ir.nodes import Assign, Call, Expr, If, Program, Stmt


@dataclass(frozen=True)
class BranchFlattener:
    """Flattens programs; `settled` tells conditions that are known when a kernel is compiled."""

    settled: Callable[[Expr], bool]

    def __call__(self, program: Program) -> Program:
        """The same program without a branch inside a branch that is not settled."""
        return tuple(flat for stmt in program for flat in self._flat(stmt))

    def _flat(self, stmt: Stmt) -> Iterator[Stmt]:
        if isinstance(stmt, Assign):
            yield stmt
            return
        stmt = replace(stmt, then=self(stmt.then), orelse=self(stmt.orelse))
        if self.settled(stmt.condition) or not self._branches((*stmt.then, *stmt.orelse)):
            yield stmt
            return
        yield from self._under(stmt, stmt.condition, stmt.then)
        yield from self._under(stmt, Call("not", (stmt.condition,)), stmt.orelse)

    def _branches(self, program: Program) -> bool:
        """Whether a program has a branch that is not settled."""
        return any(
            not self.settled(stmt.condition) or self._branches((*stmt.then, *stmt.orelse))
            for stmt in program
            if isinstance(stmt, If)
        )

    def _under(self, outer: If, condition: Expr, arm: Program) -> Iterator[If]:
        """The statements of an arm, each branch of it under both conditions."""
        plain: list[Stmt] = []
        for stmt in arm:
            if isinstance(stmt, Assign):
                plain.append(stmt)
                continue
            if plain:
                yield replace(outer, condition=condition, then=tuple(plain), orelse=())
                plain = []
            yield from self._both(outer, condition, stmt)
        if plain:
            yield replace(outer, condition=condition, then=tuple(plain), orelse=())

    def _both(self, outer: If, condition: Expr, inner: If) -> Iterator[If]:
        if self.settled(inner.condition):
            arms = (tuple(self._under(outer, condition, a)) for a in (inner.then, inner.orelse))
            then, orelse = arms
            yield replace(inner, then=then, orelse=orelse)
            return
        for taken, arm in (
            (inner.condition, inner.then),
            (Call("not", (inner.condition,)), inner.orelse),
        ):
            if arm:
                both = Call("and", (condition, taken))
                yield replace(inner, condition=both, then=arm, orelse=())

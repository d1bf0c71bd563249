"""Fold arithmetic on constants, and branches with constant conditions."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Expr, Program, Ref, Stmt
from optgen.ir.value_kinds import Kind, declared_kinds, kind_of
from optgen.passes.fold_expression import fold, is_truth
from optgen.passes.preserve_axes import preserve_axes


def fold_constants(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with its expressions folded and its unreachable arms dropped."""
    kinds = declared_kinds(algorithm)
    stored = {algorithm.param, *(s.symbol for s in algorithm.device_states())}
    folder = _Folder(kinds, {name: kinds[name] for name in stored})
    return replace(algorithm, rule=folder.program(algorithm.rule))


class _Folder:
    """Constant folder that tracks the kind of every name, statement by statement."""

    def __init__(self, kinds: dict[str, Kind], stored: dict[str, Kind]) -> None:
        self.kinds = dict(kinds)
        self.stored = stored  # kinds of p and of states: they stay tensors if assigned a number

    def program(self, program: Program) -> Program:
        out: list[Stmt] = []
        for stmt in program:
            if isinstance(stmt, Assign):
                out.append(replace(stmt, value=self.folded(stmt.value)))
                name, kind = stmt.target.name, kind_of(stmt.value, self.kind)
                self.kinds[name] = kind.join(self.stored.get(name, kind))
                continue
            condition = fold(stmt.condition)
            if is_truth(condition):
                out += self.program(stmt.then if condition.value else stmt.orelse)
                continue
            then, orelse = self.arms(stmt.then, stmt.orelse)
            out.append(replace(stmt, condition=condition, then=then, orelse=orelse))
        return tuple(out)

    def arms(self, then: Program, orelse: Program) -> tuple[Program, Program]:
        """Return both arms folded, and join the kinds that a name gets in either arm."""
        before = dict(self.kinds)
        then = self.program(then)
        after_then, self.kinds = self.kinds, before
        orelse = self.program(orelse)
        for name, kind in after_then.items():
            self.kinds[name] = kind.join(self.kinds.get(name, kind))
        return then, orelse

    def folded(self, expr: Expr) -> Expr:
        return fold(preserve_axes(expr, self.kind))

    def kind(self, ref: Ref) -> Kind:
        return self.kinds[ref.name]

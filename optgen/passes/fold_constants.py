"""Fold arithmetic on constants, and branches whose conditions are constant or already decided."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.binding_times import Kind, declared_kinds, kind_of
from optgen.ir.nodes import Assign, Call, Const, Expr, If, Program, Ref, Stmt, refs
from optgen.passes.fold_expression import fold, is_truth
from optgen.passes.preserve_axes import preserve_axes


def fold_constants(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with its expressions folded and its unreachable arms dropped."""
    kinds = declared_kinds(algorithm)
    stored = {algorithm.param, *(s.symbol for s in algorithm.device_states())}
    hypers = frozenset(hyper.name for hyper in algorithm.hypers)
    folder = _Folder(kinds, {name: kinds[name] for name in stored}, hypers)
    return replace(algorithm, rule=folder.program(algorithm.rule))


class _Folder:
    """Constant folder that tracks the kind of every name, statement by statement."""

    def __init__(
        self, kinds: dict[str, Kind], stored: dict[str, Kind], hypers: frozenset[str]
    ) -> None:
        self.kinds = dict(kinds)
        self.stored = stored  # kinds of p and of states: they stay tensors if assigned a number
        self.hypers = hypers  # no statement changes them
        self.decided: dict[Expr, bool] = {}  # truth of conditions on hyperparameters, in this arm

    def program(self, program: Program) -> Program:
        """Return a program with its expressions folded and its unreachable arms dropped."""
        folded_stmts: list[Stmt] = []
        for stmt in program:
            if isinstance(stmt, Assign):
                folded_stmts.append(replace(stmt, value=self.folded(stmt.value)))
                name, kind = stmt.target.name, kind_of(stmt.value, self.kind)
                self.kinds[name] = kind.join(self.stored.get(name, kind))
                continue
            condition = self.condition(stmt.condition)
            if is_truth(condition):
                folded_stmts += self.program(stmt.then if condition.value else stmt.orelse)
                continue
            then, orelse = self.arms(replace(stmt, condition=condition))
            folded_stmts.append(replace(stmt, condition=condition, then=then, orelse=orelse))
        return tuple(folded_stmts)

    def condition(self, condition: Expr) -> Expr:
        """Return a folded condition; it becomes a constant if the branches around it decide it."""
        folded = fold(condition)
        unnegated, holds = _without_not(folded)
        return Const(self.decided[unnegated] is holds) if unnegated in self.decided else folded

    def arms(self, stmt: If) -> tuple[Program, Program]:
        """Return both folded arms: `then`, `orelse`. Join the kinds that they give to names."""
        kinds_before = dict(self.kinds)
        then = self.arm(stmt.then, stmt.condition, is_then=True)
        after_then, self.kinds = self.kinds, kinds_before
        orelse = self.arm(stmt.orelse, stmt.condition, is_then=False)
        for name, kind in after_then.items():
            self.kinds[name] = kind.join(self.kinds.get(name, kind))
        return then, orelse

    def arm(self, program: Program, condition: Expr, is_then: bool) -> Program:
        """Return a folded arm of a branch whose condition holds in the `then` arm only."""
        outer, (unnegated, holds) = self.decided, _without_not(condition)
        if {ref.name for ref in refs(unnegated)} <= self.hypers:
            self.decided = {**outer, unnegated: holds == is_then}
        folded = self.program(program)
        self.decided = outer
        return folded

    def folded(self, expr: Expr) -> Expr:
        return fold(preserve_axes(expr, self.kind))

    def kind(self, ref: Ref) -> Kind:
        return self.kinds[ref.name]


def _without_not(condition: Expr) -> tuple[Expr, bool]:
    """Return a condition without leading negations, and whether their number is even."""
    holds = True
    while isinstance(condition, Call) and condition.op == "not":
        (condition,), holds = condition.args, not holds
    return condition, holds

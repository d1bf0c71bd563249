"""Share equal values: a local that repeats an earlier local's value is left out.

Helpers are inlined, so two calls of helpers may compute one value under two names. Later passes
compare values by the names in them. They then find products, decompositions and reductions that are
equal under other names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.kinds import declared_kinds
from optgen.ir.nodes import Call, Expr, If, Program, Ref, Stmt, assigns, rebuild, walk
from optgen.passes.extract_subexpressions import lasting_versions


def share_equal_values(algorithm: Algorithm) -> Algorithm:
    """Return an SSA rule without locals that equal an earlier local of the block or around it.

    A local that is overwritten later, or that both arms of a branch assign, is not shared.
    """
    counts = Counter(a.target for a in assigns(algorithm.rule))
    declared, lasting = declared_kinds(algorithm), lasting_versions(algorithm.rule)
    shared = (ref for ref in lasting if counts[ref] == 1 and ref.name not in declared)
    return replace(algorithm, rule=_Sharer(frozenset(shared)).program(algorithm.rule, {}))


@dataclass
class _Sharer:
    """Sharer of values. `first` has the earlier local for each local that is left out."""

    locals_: frozenset[Ref]
    first: dict[Ref, Ref] = field(default_factory=dict)

    def program(self, program: Program, known: dict[Expr, Ref]) -> Program:
        """Rewrite a block. `known` has the local of each value that is computed before it."""
        out: list[Stmt] = []
        for stmt in program:
            if isinstance(stmt, If):
                then, orelse = (self.program(arm, dict(known)) for arm in (stmt.then, stmt.orelse))
                condition = self._renamed(stmt.condition)
                out.append(replace(stmt, condition=condition, then=then, orelse=orelse))
                continue
            value = self._renamed(stmt.value)
            if stmt.target in self.locals_ and _may_be_shared(value):
                self.first[stmt.target] = known.setdefault(value, stmt.target)
            if self.first.get(stmt.target, stmt.target) == stmt.target:
                out.append(replace(stmt, value=value))
        return tuple(out)

    def _renamed(self, expr: Expr) -> Expr:
        if isinstance(expr, Ref):
            return self.first.get(expr, expr)
        return rebuild(expr, self._renamed)


def _may_be_shared(value: Expr) -> bool:
    """Tell whether a value may have another name: it is computed, within one parameter."""
    return isinstance(value, Call) and not any(is_wide(node) for node in walk(value))

"""Cut a rule into phases so that no small value stays alive across a matrix op.

A matrix op runs for many parameters at once, on whole tensors that a sweep has stored. Only tensors
are kept across it; small values (numbers, rows and columns) are not. So a small value that is read
after the op is also reduced after it, from tensors that the later sweep recomputes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optgen.ir.algorithm import Algorithm
from optgen.ir.binding_times import Axes, Stage
from optgen.ir.errors import RuleError
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, expressions
from optgen.ir.plan import reads
from optgen.passes.cut_phases import RulePhases, cut_into_phases, names_stored_rounded
from optgen.passes.dependency_depth import Depths, Kinds, depths_of, needs_sweep


def cut_at_matrix_ops(
    algorithm: Algorithm, kinds: Kinds, stores_early: bool
) -> tuple[RulePhases, bool]:
    """Return the phases of an SSA rule with named reductions, and whether they store states early.

    `stores_early` asks for early stores; `cut_phases` defines early and late. A sweep that
    recomputes a state may need a number that an earlier matrix op also needs. In that case the rule
    is cut again with early stores, and sweeps read back all that is stored.

    Raises:
        RuleError: A number, row or column is needed both before and after a matrix op.
    """
    rounded_names = names_stored_rounded(algorithm, stores_early)
    try:
        return _cut_without_crossings(algorithm, kinds, stores_early, rounded_names), stores_early
    except RuleError:
        phases = _cut_without_crossings(
            algorithm, kinds, stores_early=True, rounded_names=frozenset()
        )
        return phases, True


def _cut_without_crossings(
    algorithm: Algorithm, kinds: Kinds, stores_early: bool, rounded_names: frozenset[str]
) -> RulePhases:
    """Cut the rule. While small values cross a matrix op, delay them and cut the rule again."""
    dependencies = _Dependencies(algorithm, kinds)
    floors: dict[Ref, int] = {}
    while True:
        depths = depths_of(algorithm, kinds, floors)
        phases = cut_into_phases(algorithm, kinds, depths, stores_early, rounded_names)
        new_floors = dependencies.floors(phases, depths)
        if not new_floors:
            return phases
        floors |= new_floors


class _Dependencies:
    """Data dependencies of an SSA rule: what each name is computed from.

    A statement also depends on the conditions of the branches around it. `operands` has the names
    that each name is computed from directly.
    """

    def __init__(self, algorithm: Algorithm, kinds: Kinds) -> None:
        self.kinds = kinds
        self.operands: dict[Ref, set[Ref]] = {}
        self._add_reads(algorithm.rule, ())
        self.reductions = {
            stmt.target
            for stmt in assigns(algorithm.rule)
            if needs_sweep(stmt.value, kinds) and self._is_small(stmt.target)
        }
        self.definitions = {a.target: a for a in reversed(tuple(assigns(algorithm.rule)))}

    def _add_reads(self, program: Program, conditions: tuple[Expr, ...]) -> None:
        for stmt in program:
            if isinstance(stmt, Assign):
                read = (r for expr in (*conditions, stmt.value) for r in reads(expr))
                self.operands.setdefault(stmt.target, set()).update(read)
            else:
                self._add_reads(stmt.then, (*conditions, stmt.condition))
                self._add_reads(stmt.orelse, (*conditions, stmt.condition))

    def floors(self, phases: RulePhases, depths: Depths) -> Mapping[Ref, int]:
        """Return the least depth of each value that must be computed later, after a matrix op."""
        floors: dict[Ref, int] = {}
        for depth, calls in enumerate(phases.calls):
            for call in calls:
                for ref in self._crossing_values(phases, depths, depth):
                    for delayed, floor in self._new_floors(ref, depth).items():
                        self._check_is_no_operand(delayed, call)
                        floors[delayed] = max(floor, floors.get(delayed, 0))
        return floors

    def _crossing_values(self, phases: RulePhases, depths: Depths, depth: int) -> Iterator[Ref]:
        """Yield small values computed before the matrix ops of this depth and read after them."""
        programs = (*phases.sweeps[depth:], *phases.finishes[depth:])
        read = dict.fromkeys(r for p in programs for e in expressions(p) for r in reads(e))
        for ref in read:
            is_before = depths[ref] < depth or (depths[ref] == depth and ref in self.reductions)
            if is_before and ref in self.operands and self._is_small(ref):
                yield ref

    def _new_floors(self, ref: Ref, depth: int) -> dict[Ref, int]:
        """Return the new least depth of each reduction that a small value needs.

        If the small value needs no reduction, return the least depth of the value itself.
        """
        reductions = [r for r in self._upstream(ref, small_only=True) if r in self.reductions]
        return dict.fromkeys(reductions, depth + 1) if reductions else {ref: depth}

    def _check_is_no_operand(self, delayed: Ref, call: Assign) -> None:
        """Raise RuleError if a matrix op needs a value that is to be computed after the op."""
        if delayed not in self._upstream(call.target):
            return
        assert isinstance(call.value, Call)
        word = call.value.op
        raise RuleError(
            self.definitions[delayed].place,
            f"the value computed here is read both before and after `{word}`",
            f"numbers, rows and columns are not kept across `{word}`: recompute the value after "
            "it; a rule that has `@` or transpose as well keeps them",
        )

    def _upstream(self, ref: Ref, small_only: bool = False) -> set[Ref]:
        """Return a value and everything that the value depends on.

        With `small_only`, follow small values only, and stop at reductions.
        """
        upstream: set[Ref] = set()
        worklist = [ref]
        while worklist:
            current = worklist.pop()
            if current in upstream or (small_only and not self._is_small(current)):
                continue
            upstream.add(current)
            if not (small_only and current in self.reductions):
                worklist += self.operands.get(current, ())
        return upstream

    def _is_small(self, ref: Ref) -> bool:
        kind = self.kinds[ref]
        return kind.axes is not Axes.TENSOR and kind.stage is Stage.DEVICE

"""Cut a rule at its reductions into sweeps, and choose the sweep that stores each state.

A sweep recomputes the tensors that it needs from earlier sweeps, because memory traffic costs more
than arithmetic. So a state is stored by the last sweep that needs its old value ("late"). With
`stores_early`, a state is stored by the first sweep that knows its new value, and later sweeps read
it back, as torch does; a state whose old value a later sweep needs is still stored late.

A step continues with values before rounding. So if a rule computes in a wider dtype than it stores
(`optgen/ir/execution.py`), a sweep recomputes even what an earlier sweep has stored.

No small value stays alive across a matrix op. The op runs for many parameters at once, on whole
tensors that a sweep has stored. Only tensors are kept across it; numbers, rows and columns are not.
So a small value that is read after the op is also reduced after it, from tensors that the later
sweep recomputes. A rule whose op needs this value, too, is not cut (`why_uncut`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import widens
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    assigns,
    expressions,
    filter_assigns,
)
from optgen.ir.plan import reads
from optgen.passes.dependency_depth import Depths, Kinds, depths_of, kinds_of, needs_sweep

Order: TypeAlias = Literal["late", "early", "whole"]
"""Choice of the sweep that stores a state.

"late": the last sweep that needs the old value. Sweeps that need the new value recompute it.
"early": the first sweep that knows the new value. Later sweeps read it back.
"whole": the rule is not cut. It is one sweep, executed statement by statement on whole tensors.
Rules on whole matrices have no other plan.
"""


class CrossingError(Exception):
    """A small value would have to be kept across a matrix op, as the message says briefly."""


def cut_into_phases(algorithm: Algorithm, order: Order) -> CutRule:
    """Return an SSA rule with named reductions, cut into phases.

    A sweep that recomputes a state may need a number that an earlier matrix op also needs. In that
    case the rule is cut again with early stores, and sweeps read back all that is stored.

    Raises:
        CrossingError: A number, row or column is needed both before and after a matrix op.
    """
    kinds = kinds_of(algorithm)
    stores_early = order == "early"
    # The lowerings that store early convert tensors to the wider dtype when a step begins, and
    # write them back when it ends. So they read back nothing that is rounded.
    is_rounded = widens(algorithm) and not stores_early
    rounded_names = algorithm.stored_tensors if is_rounded else frozenset[str]()
    try:
        return _cut_without_crossings(algorithm, kinds, stores_early, rounded_names)
    except CrossingError:
        return _cut_without_crossings(
            algorithm, kinds, stores_early=True, rounded_names=frozenset()
        )


def _cut_without_crossings(
    algorithm: Algorithm, kinds: Kinds, stores_early: bool, rounded_names: frozenset[str]
) -> CutRule:
    """Cut the rule. While small values cross a matrix op, delay them and cut the rule again."""
    dependencies = _Dependencies(algorithm, kinds)
    floors: dict[Ref, int] = {}
    while True:
        depths = depths_of(algorithm, kinds, floors)
        phases = _Cutter(algorithm, kinds, depths, rounded_names).cut(stores_early)
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

    def _add_reads(self, program: Program, conditions: tuple[Expr, ...]) -> None:
        for stmt in program:
            if isinstance(stmt, Assign):
                read = (r for expr in (*conditions, stmt.value) for r in reads(expr))
                self.operands.setdefault(stmt.target, set()).update(read)
            else:
                self._add_reads(stmt.then, (*conditions, stmt.condition))
                self._add_reads(stmt.orelse, (*conditions, stmt.condition))

    def floors(self, phases: CutRule, depths: Depths) -> Mapping[Ref, int]:
        """Return the least depth of each value that must be computed later, after a matrix op."""
        floors: dict[Ref, int] = {}
        for depth, calls in enumerate(phases.calls):
            for call in assigns(calls):
                for ref in self._crossing_values(phases, depths, depth):
                    # A small value is delayed with the reductions that it needs.
                    upstream = self._upstream(ref, small_only=True)
                    reductions = [r for r in upstream if r in self.reductions]
                    for delayed in reductions or [ref]:
                        self._check_is_no_operand(delayed, call)
                        floor = depth + 1 if reductions else depth
                        floors[delayed] = max(floor, floors.get(delayed, 0))
        return floors

    def _crossing_values(self, phases: CutRule, depths: Depths, depth: int) -> Iterator[Ref]:
        """Yield small values computed before the matrix ops of this depth and read after them."""
        programs = (*phases.sweeps[depth:], *phases.finishes[depth:])
        read = dict.fromkeys(r for p in programs for e in expressions(p) for r in reads(e))
        for ref in read:
            is_before = depths[ref] < depth or (depths[ref] == depth and ref in self.reductions)
            if is_before and ref in self.operands and self._is_small(ref):
                yield ref

    def _check_is_no_operand(self, delayed: Ref, call: Assign) -> None:
        """Raise CrossingError if a matrix op needs a value that is to be computed after the op."""
        if delayed in self._upstream(call.target):
            assert isinstance(call.value, Call)
            raise CrossingError(f"values of sums are read before and after `{call.value.op}`")

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
        return self.kinds[ref].is_small


@dataclass(frozen=True)
class CutRule:
    """An SSA rule that is cut at its reductions, on the way to a plan.

    Five tuples have one entry per sweep. A sweep's entry in `finishes` computes the small values
    that are known before the sweep. Its entry in `calls` holds the matrix ops whose results the
    sweep waits for. Its entry in `stored` names the parameter and states that the sweep stores. Its
    entry in `call_inputs` names the inputs of the next sweep's matrix ops.
    """

    algorithm: Algorithm
    kinds: Kinds
    sweeps: tuple[Program, ...]
    finishes: tuple[Program, ...]
    calls: tuple[Program, ...]
    stored: tuple[frozenset[str], ...]
    call_inputs: tuple[tuple[str, ...], ...]
    stores_early: bool = False
    scalars: Program = ()  # the scalar program, once it is split off the sweeps

    @property
    def is_whole(self) -> bool:
        """Tell whether one sweep is the whole rule, because the rule is elementwise."""
        return len(self.sweeps) == 1 and not any(self.finishes)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of all sweeps, then of all finishes, then of all matrix ops."""
        return (*self.sweeps, *self.finishes, *self.calls)

    def with_programs(self, programs: Sequence[Program]) -> CutRule:
        """Return the rule with other programs, in the order of `programs`."""
        count = len(self.sweeps)
        sweeps, finishes, calls = (
            tuple(programs[first : first + count]) for first in (0, count, 2 * count)
        )
        return replace(self, sweeps=sweeps, finishes=finishes, calls=calls)


def keep_whole(algorithm: Algorithm) -> CutRule:
    """Return an SSA rule that is not cut: all of it is one sweep."""
    stored = (algorithm.stored_tensors,)
    return CutRule(algorithm, kinds_of(algorithm), (algorithm.rule,), ((),), ((),), stored, ((),))


@dataclass
class _Cutter:
    """Cutter of an SSA rule with named reductions.

    `rounded_names` are the parameter and states whose new values no sweep reads back. `definitions`
    has the statements that assign each version of a name. `last_versions` has the last version of
    the parameter and of each tensor state.
    """

    algorithm: Algorithm
    kinds: Kinds
    depths: Depths
    rounded_names: frozenset[str]
    definitions: dict[Ref, list[Assign]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rule = self.algorithm.rule
        for stmt in assigns(self.rule):
            self.definitions.setdefault(stmt.target, []).append(stmt)
        self.sweep_count = 1 + max(self.depths[stmt.target] for stmt in assigns(self.rule))
        self.all_sweeps = range(self.sweep_count)
        self.last_versions = {
            ref.name: ref
            for ref in sorted(self.definitions, key=lambda ref: ref.version)
            if ref.name in self.algorithm.stored_tensors
        }

    @staticmethod
    def _stored_by(sweep: int, storing_sweeps: Mapping[str, int]) -> frozenset[str]:
        """Return the names that a sweep stores; `storing_sweeps` maps each name to its sweep."""
        return frozenset(
            name for name, storing_sweep in storing_sweeps.items() if storing_sweep == sweep
        )

    def cut(self, stores_early: bool) -> CutRule:
        """Return the phases; with `stores_early`, each state is stored as early as possible."""
        storing_sweeps = self._stored_early() if stores_early else self._stored_late({})
        in_memory = [self._in_memory(storing_sweeps, sweep) for sweep in self.all_sweeps]
        needed = [
            self._needed(self._roots(sweep, storing_sweeps), in_memory[sweep])
            for sweep in self.all_sweeps
        ]
        computed = [needed[sweep] - in_memory[sweep] for sweep in self.all_sweeps]
        return CutRule(
            self.algorithm,
            self.kinds,
            tuple(self._sweep(sweep, computed[sweep]) for sweep in self.all_sweeps),
            tuple(self._finish(sweep) for sweep in self.all_sweeps),
            tuple(tuple(self._calls(sweep)) for sweep in self.all_sweeps),
            tuple(self._stored_by(sweep, storing_sweeps) for sweep in self.all_sweeps),
            tuple(self._call_inputs(sweep) for sweep in self.all_sweeps),
            stores_early,
        )

    def _sweep(self, sweep: int, computed: set[Ref]) -> Program:
        """Return the statements of one sweep: the tensors it computes, and its reductions."""

        def belongs(stmt: Assign) -> bool:
            if self._needs_sweep(stmt):
                is_reduction = not self._is_tensor(stmt.target)
                return is_reduction and self.depths[stmt.target] == sweep + 1
            return stmt.target in computed and self._is_tensor(stmt.target)

        return filter_assigns(self.rule, belongs)

    def _finish(self, depth: int) -> Program:
        """Return the statements of small values that are known at a depth."""

        def belongs(stmt: Assign) -> bool:
            is_small = self.kinds[stmt.target].is_small
            return is_small and not self._needs_sweep(stmt) and self.depths[stmt.target] == depth

        return filter_assigns(self.rule, belongs)

    def _calls(self, depth: int) -> Iterator[Assign]:
        """Yield the matrix ops whose results are known at a depth."""
        for stmt in assigns(self.rule):
            is_matrix_op = self._needs_sweep(stmt) and self._is_tensor(stmt.target)
            if is_matrix_op and self.depths[stmt.target] == depth:
                yield stmt

    def _call_inputs(self, sweep: int) -> tuple[str, ...]:
        """Return the tensors that the matrix ops after a sweep read."""
        calls = self._calls(sweep + 1) if sweep + 1 < self.sweep_count else ()
        return tuple(dict.fromkeys(ref.name for stmt in calls for ref in self._tensors_read(stmt)))

    def _roots(self, sweep: int, storing_sweeps: Mapping[str, int]) -> set[Ref]:
        """Return the tensors that a sweep stores, reduces or passes to a matrix op."""
        roots = {self.last_versions[name] for name in self._stored_by(sweep, storing_sweeps)}
        for stmt in assigns(self.rule):
            if self._needs_sweep(stmt) and self.depths[stmt.target] == sweep + 1:
                roots |= set(self._tensors_read(stmt))
        return roots

    def _needed(self, roots: Iterable[Ref], in_memory: set[Ref]) -> set[Ref]:
        """Return the tensors that a sweep computes, or reads because they are `in_memory`."""
        needed: set[Ref] = set()
        worklist = list(roots)
        while worklist:
            ref = worklist.pop()
            if ref in needed:
                continue
            needed.add(ref)
            if ref not in in_memory:
                worklist += [
                    r for s in self.definitions.get(ref, ()) for r in self._tensors_read(s)
                ]
        return needed

    def _tensors_read(self, stmt: Assign) -> Iterator[Ref]:
        """Yield the tensors that a statement reads."""
        return (ref for ref in reads(stmt.value) if self._is_tensor(ref))

    def _stored_late(self, chosen_sweeps: Mapping[str, int]) -> dict[str, int]:
        """Return the sweep that stores each name: the last that needs its old value.

        The names in `chosen_sweeps` already have a sweep.
        """
        storing_sweeps = dict(chosen_sweeps)
        for sweep in reversed(self.all_sweeps):
            while names := self._storable(sweep, storing_sweeps):
                storing_sweeps |= dict.fromkeys(names, sweep)
        return storing_sweeps

    def _storable(self, sweep: int, storing_sweeps: Mapping[str, int]) -> set[str]:
        """Return the names that this sweep must store, if no later sweep stores them.

        For each name, it is the first sweep that knows the new value, or the last that needs the
        old value.
        """
        roots = self._roots(sweep, storing_sweeps)
        needed = self._needed(
            roots, self._in_memory(storing_sweeps, sweep) | self._matrix_results(sweep)
        )
        unstored = {n: ref for n, ref in self.last_versions.items() if n not in storing_sweeps}
        return {
            name
            for name, ref in unstored.items()
            if self.depths[ref] == sweep or (self.depths[ref] < sweep and Ref(name) in needed)
        }

    def _stored_early(self) -> dict[str, int]:
        """Return the sweep that stores each name: the first that knows its new value.

        A name whose old value a later sweep needs is stored late.
        """
        early_sweeps = {name: self.depths[ref] for name, ref in self.last_versions.items()}
        while True:
            storing_sweeps = self._stored_late(early_sweeps)
            late_names = {
                name
                for name, storing_sweep in early_sweeps.items()
                for sweep in range(storing_sweep + 1, self.sweep_count)
                if Ref(name)
                in self._needed(
                    self._roots(sweep, storing_sweeps), self._in_memory(storing_sweeps, sweep)
                )
            }
            if not late_names:
                return storing_sweeps
            early_sweeps = {
                name: sweep for name, sweep in early_sweeps.items() if name not in late_names
            }

    def _in_memory(self, storing_sweeps: Mapping[str, int], sweep: int) -> set[Ref]:
        """Return what a sweep can read: new values stored before it, and results of matrix ops."""
        exact = storing_sweeps.keys() - self.rounded_names
        new_values = {self.last_versions[name] for name in exact if storing_sweeps[name] < sweep}
        return new_values | self._matrix_results(sweep)

    def _matrix_results(self, sweep: int) -> set[Ref]:
        return {s.target for depth in range(sweep + 1) for s in self._calls(depth)}

    def _needs_sweep(self, stmt: Assign) -> bool:
        return needs_sweep(stmt.value, self.kinds)

    def _is_tensor(self, ref: Ref) -> bool:
        return self.kinds[ref].axes is Axes.TENSOR

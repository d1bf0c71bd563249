"""Cuts a rule at its reductions: what each trip through memory computes, stores and reduces.

A trip computes anew whatever it needs of tensors that an earlier one computed: memory is dearer
than arithmetic. So a state is stored by the last trip that needs the value it had before; `early`
plans store it in the first trip that knows its new value and read it back, as torch does, unless a
later trip needs the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Program, Ref, assigns
from optgen.ir.plan import reads
from optgen.ir.value_kinds import Axes, Stage
from optgen.passes.levels import Kinds, Levels, needs_sweep
from optgen.passes.rewrite import filter_assigns


@dataclass(frozen=True)
class Cut:
    """The programs of one rule, between `ends` trips: those trips, and what is small before each.

    `calls` holds the matrix words whose results the trip of the same place waits for; `stored` what
    each trip stores, `handed` the locals it stores for the matrix words that follow it.
    """

    trips: tuple[Program, ...]
    finishes: tuple[Program, ...]
    calls: tuple[tuple[Assign, ...], ...]
    stored: tuple[frozenset[str], ...]
    handed: tuple[tuple[str, ...], ...]

    @property
    def is_whole(self) -> bool:
        """Whether one trip does it all: the rule is elementwise."""
        return len(self.trips) == 1 and not any(self.finishes)


def cut(algorithm: Algorithm, kinds: Kinds, levels: Levels, early: bool) -> Cut:
    """The phases of a rule with versions and named reductions."""
    return _Cutter(algorithm, kinds, levels).cut(early)


def uncut(algorithm: Algorithm) -> Cut:
    """The whole rule as one trip."""
    kept = {algorithm.param, *(s.symbol for s in algorithm.tensor_states())}
    return Cut((algorithm.rule,), ((),), ((),), (frozenset(kept),), ((),))


@dataclass
class _Cutter:
    algorithm: Algorithm
    kinds: Kinds
    levels: Levels
    made: dict[Ref, list[Assign]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rule = self.algorithm.rule
        for stmt in assigns(self.rule):
            self.made.setdefault(stmt.target, []).append(stmt)
        self.last = 1 + max(self.levels[stmt.target] for stmt in assigns(self.rule))
        self.final = {
            ref.name: ref
            for ref in sorted(self.made, key=lambda ref: ref.version)
            if ref.name in self._kept()
        }

    def _kept(self) -> set[str]:
        return {self.algorithm.param, *(s.symbol for s in self.algorithm.tensor_states())}

    def cut(self, early: bool) -> Cut:
        stored = self._stored_early() if early else self._stored_late({})
        known = [self._stored_before(stored, trip) for trip in range(self.last)]
        needed = [self._needed(self._roots(trip, stored), known[trip]) for trip in range(self.last)]
        return Cut(
            tuple(self._trip(trip, needed[trip] - known[trip]) for trip in range(self.last)),
            tuple(self._finish(level) for level in range(self.last)),
            tuple(tuple(self._calls(trip)) for trip in range(self.last)),
            tuple(frozenset(n for n, at in stored.items() if at == t) for t in range(self.last)),
            tuple(self._handed(trip) for trip in range(self.last)),
        )

    def _trip(self, trip: int, needed: set[Ref]) -> Program:
        """The statements of one trip: tensors it computes, and reductions that can be made then."""

        def belongs(stmt: Assign) -> bool:
            if self._is_made_between(stmt):
                return self._is_reduction(stmt) and self.levels[stmt.target] == trip + 1
            return stmt.target in needed and self._is_whole(stmt.target)

        return filter_assigns(self.rule, belongs)

    def _finish(self, level: int) -> Program:
        """What is small and known at a level."""

        def belongs(stmt: Assign) -> bool:
            kind = self.kinds[stmt.target]
            small = kind.axes is not Axes.TENSOR and kind.stage is Stage.DEVICE
            return small and not self._is_made_between(stmt) and self.levels[stmt.target] == level

        return filter_assigns(self.rule, belongs)

    def _calls(self, level: int) -> Iterator[Assign]:
        for stmt in assigns(self.rule):
            if self._is_matrix_word(stmt) and self.levels[stmt.target] == level:
                yield stmt

    def _handed(self, trip: int) -> tuple[str, ...]:
        calls = self._calls(trip + 1) if trip + 1 < self.last else ()
        return tuple(dict.fromkeys(ref.name for stmt in calls for ref in self._whole(stmt)))

    def _roots(self, trip: int, stored: Mapping[str, int]) -> set[Ref]:
        """What a trip must have computed: what it stores, reduces, or hands to a matrix word."""
        roots = {self.final[name] for name, at in stored.items() if at == trip}
        for stmt in assigns(self.rule):
            if self._is_made_between(stmt) and self.levels[stmt.target] == trip + 1:
                roots |= set(self._whole(stmt))
        return roots

    def _needed(self, roots: Iterable[Ref], known: set[Ref]) -> set[Ref]:
        """The tensors that a trip computes or reads; `known` ones are read as they are."""
        needed: set[Ref] = set()
        waiting = list(roots)
        while waiting:
            ref = waiting.pop()
            if ref in needed:
                continue
            needed.add(ref)
            if ref not in known:
                waiting += [r for s in self.made.get(ref, ()) for r in self._whole(s)]
        return needed

    def _whole(self, stmt: Assign) -> Iterator[Ref]:
        """The tensors a statement reads; the result of a matrix word reads nothing any more."""
        return (ref for ref in reads(stmt.value) if self._is_whole(ref))

    def _stored_late(self, given: Mapping[str, int]) -> dict[str, int]:
        """The trip that stores each name: the last that needs its old value, and can."""
        stored = dict(given)
        for trip in reversed(range(self.last)):
            while fresh := self._storable(trip, stored):
                stored |= dict.fromkeys(fresh, trip)
        return stored

    def _storable(self, trip: int, stored: Mapping[str, int]) -> set[str]:
        roots = self._roots(trip, stored)
        needed = self._needed(roots, self._stored_before(stored, trip) | self._called(trip))
        waiting = {n: ref for n, ref in self.final.items() if n not in stored}
        return {
            name
            for name, ref in waiting.items()
            if self.levels[ref] == trip or (self.levels[ref] < trip and Ref(name) in needed)
        }

    def _stored_early(self) -> dict[str, int]:
        """As soon as it is known, where no later trip needs the old value then."""
        soon = {name: self.levels[ref] for name, ref in self.final.items()}
        while True:
            stored = self._stored_late(soon)
            late = {
                name
                for name, at in soon.items()
                for trip in range(at + 1, self.last)
                if Ref(name)
                in self._needed(self._roots(trip, stored), self._stored_before(stored, trip))
            }
            if not late:
                return stored
            soon = {name: at for name, at in soon.items() if name not in late}

    def _stored_before(self, stored: Mapping[str, int], trip: int) -> set[Ref]:
        """What a trip finds in memory: new values stored, and results of matrix words."""
        found = {self.final[name] for name, at in stored.items() if at < trip}
        return found | self._called(trip)

    def _called(self, trip: int) -> set[Ref]:
        return {s.target for level in range(trip + 1) for s in self._calls(level)}

    def _is_made_between(self, stmt: Assign) -> bool:
        return needs_sweep(stmt.value, self.kinds)

    def _is_matrix_word(self, stmt: Assign) -> bool:
        return self._is_made_between(stmt) and self._is_whole(stmt.target)

    def _is_reduction(self, stmt: Assign) -> bool:
        return self._is_made_between(stmt) and not self._is_whole(stmt.target)

    def _is_whole(self, ref: Ref) -> bool:
        return self.kinds[ref].axes is Axes.TENSOR

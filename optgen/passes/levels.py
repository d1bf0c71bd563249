"""When a value can be known: how many trips through memory must have ended before.

A reduction of tensors is known one trip after what it reduces, a matrix word too; all else is known
as soon as what it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Expr, Program, Ref
from optgen.ir.plan import reads
from optgen.ir.value_kinds import Axes, Kind, declared_kinds, kind_of
from optgen.passes.name_reductions import ends_phase


class TangledError(Exception):
    """Values wait for one another: each arm of a branch makes one of them of the other."""


Levels = Mapping[Ref, int]
Kinds = Mapping[Ref, Kind]


def kinds_of(algorithm: Algorithm) -> dict[Ref, Kind]:
    """The kind of every name a rule with versions reads or writes."""
    declared = declared_kinds(algorithm)
    kinds = {Ref(name): kind for name, kind in declared.items()}
    kept = {algorithm.param, *(s.symbol for s in algorithm.states if s.shape != "scalar")}
    _learn(algorithm.rule, kinds, {name: declared[name] for name in kept})
    return kinds


def _learn(program: Program, kinds: dict[Ref, Kind], kept: Mapping[str, Kind]) -> None:
    for stmt in program:
        if not isinstance(stmt, Assign):
            _learn(stmt.then, kinds, kept)
            _learn(stmt.orelse, kinds, kept)
            continue
        kind = kind_of(stmt.value, kinds.__getitem__)
        for known in (kinds.get(stmt.target), kept.get(stmt.target.name)):
            kind = kind.join(known) if known else kind
        kinds[stmt.target] = kind


def levels_of(
    algorithm: Algorithm, kinds: Kinds, floors: Mapping[Ref, int] | None = None
) -> dict[Ref, int]:
    """Return the level of every name a rule with versions and named reductions reads or writes.

    What is asked to wait has at least its floor for a level. A value that both arms of a branch
    make is known when either is, so what one arm makes of it may have to wait for the other: the
    levels are found anew until they stay.
    """
    levels = {ref: 0 for ref in kinds if ref.version == 0}
    before: dict[Ref, int] = {}
    while levels != before:
        if max(levels.values(), default=0) > len(kinds):
            raise TangledError
        before = dict(levels)
        unread = {state.symbol: 0 for state in algorithm.factor_states()}
        _Levels(kinds, floors or {}, levels, unread).rise(algorithm.rule, 0)
    return levels


@dataclass
class _Levels:
    """Finds levels; `last_read` is that at which a state of rows or columns was read so far.

    Such a state is written no earlier: whoever waits for a matrix word still finds the old value.
    """

    kinds: Kinds
    floors: Mapping[Ref, int]
    levels: dict[Ref, int]
    last_read: dict[str, int]

    def rise(self, program: Program, least: int) -> None:
        """Find the levels of a program under branches that are known at level `least`."""
        for stmt in program:
            if isinstance(stmt, Assign):
                self._assign(stmt, least)
                continue
            inside = max(least, highest(reads(stmt.condition), self.levels))
            self._note(stmt.condition, inside)
            self.rise(stmt.then, inside)
            self.rise(stmt.orelse, inside)

    def _assign(self, stmt: Assign, least: int) -> None:
        read, name = highest(reads(stmt.value), self.levels), stmt.target.name
        known = self.levels.get(stmt.target, 0) if stmt.target.version else 0
        level = read + 1 if needs_sweep(stmt.value, self.kinds) else read
        floors = (self.floors.get(stmt.target, 0), self.last_read.get(name, 0), known)
        self.levels[stmt.target] = max(least, level, *floors)
        if self.kinds[stmt.target].axes is not Axes.TENSOR:
            self._note(stmt.value, self.levels[stmt.target])

    def _note(self, value: Expr, level: int) -> None:
        for ref in reads(value):
            if ref.name in self.last_read:
                self.last_read[ref.name] = max(self.last_read[ref.name], level)


def needs_sweep(value: Expr, kinds: Kinds) -> bool:
    """Whether a value is made by a trip through memory that must have ended before it is read."""
    if not ends_phase(value):
        return False
    axes = (kind_of(ref, kinds.__getitem__).axes for ref in reads(value))
    return Axes.TENSOR in axes


def highest(read: Iterable[Ref], levels: Levels) -> int:
    """The level at which all of these are known."""
    return max((levels[ref] for ref in read), default=0)

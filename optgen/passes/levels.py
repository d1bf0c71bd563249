"""When a value can be known: how many trips through memory must have ended before.

A reduction of tensors is known one trip after what it reduces, a matrix word too; all else is known
as soon as what it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes, Kind, declared_kinds, kind_of
from optgen.ir.nodes import Assign, Expr, Program, Ref
from optgen.ir.plan import reads
from optgen.passes.name_reductions import ends_phase

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
    """The level of every name a rule with versions and named reductions reads or writes.

    What is asked to wait has at least its floor for a level.
    """
    levels = {ref: 0 for ref in kinds if ref.version == 0}
    _rise(algorithm.rule, 0, kinds, levels, floors or {})
    return levels


def _rise(
    program: Program, least: int, kinds: Kinds, levels: dict[Ref, int], floors: Mapping[Ref, int]
) -> None:
    for stmt in program:
        if isinstance(stmt, Assign):
            floor = floors.get(stmt.target, 0)
            level = max(least, floor, _level(stmt.value, kinds, levels))
            known = levels.get(stmt.target, 0) if stmt.target.version else 0
            levels[stmt.target] = max(level, known)
            continue
        inside = max(least, highest(reads(stmt.condition), levels))
        _rise(stmt.then, inside, kinds, levels, floors)
        _rise(stmt.orelse, inside, kinds, levels, floors)


def _level(value: Expr, kinds: Kinds, levels: Levels) -> int:
    level = highest(reads(value), levels)
    return level + 1 if needs_sweep(value, kinds) else level


def needs_sweep(value: Expr, kinds: Kinds) -> bool:
    """Whether a value is made by a trip through memory that must have ended before it is read."""
    if not ends_phase(value):
        return False
    axes = (kind_of(ref, kinds.__getitem__).axes for ref in reads(value))
    return Axes.TENSOR in axes


def highest(read: Iterable[Ref], levels: Levels) -> int:
    """The level at which all of these are known."""
    return max((levels[ref] for ref in read), default=0)

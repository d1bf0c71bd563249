"""Compute dependency depths: how many sweeps must have ended before a value is known.

The result of a reduction of tensors, or of a matrix op, is one deeper than its operand. Any other
value is as deep as its deepest operand. A reduction over several parameters is at least as deep as
each such reduction before it, because all parameters must reach these reductions in one order, even
if their plans differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.kinds import Axes, Kind, declared_kinds, kind_of
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, walk
from optgen.ir.ops import RANDOM_OPS
from optgen.ir.plan import reads
from optgen.passes.extract_subexpressions import ends_phase


class CyclicDependencyError(Exception):
    """Cyclic dependency: one arm of a branch computes a from b, and the other arm b from a."""


Depths = Mapping[Ref, int]
Kinds = Mapping[Ref, Kind]


def kinds_of(algorithm: Algorithm) -> dict[Ref, Kind]:
    """Return the kind of every name that an SSA rule reads or writes.

    A later arm of a branch may change the kind of a name that an earlier arm reads. So kinds are
    joined repeatedly, up to a fixed point.
    """
    declared = declared_kinds(algorithm)
    kinds = {Ref(name): kind for name, kind in declared.items()}
    stored = {algorithm.param, *(s.symbol for s in algorithm.device_states())}
    previous_kinds: dict[Ref, Kind] = {}
    while kinds != previous_kinds:
        previous_kinds = dict(kinds)
        for stmt in assigns(algorithm.rule):
            name, kind = stmt.target.name, kind_of(stmt.value, kinds.__getitem__)
            kind = kind.join(kinds.get(stmt.target, kind))
            kinds[stmt.target] = kind.join(declared[name]) if name in stored else kind
    return kinds


def depths_of(
    algorithm: Algorithm, kinds: Kinds, floors: Mapping[Ref, int] | None = None
) -> dict[Ref, int]:
    """Return the depth of every name that an SSA rule with named reductions reads or writes.

    `floors` holds least depths of names. A value that both arms of a branch assign has the greater
    of its two depths. This may deepen what the other arm computes from the value. So the depths are
    computed repeatedly, up to a fixed point.

    Raises:
        CyclicDependencyError: There is no fixed point: values depend on one another.
    """
    depths = {ref: 0 for ref in kinds if ref.version == 0}
    previous_depths: dict[Ref, int] = {}
    while depths != previous_depths:
        if max(depths.values(), default=0) > len(kinds):
            raise CyclicDependencyError
        previous_depths = dict(depths)
        last_read = {state.symbol: 0 for state in algorithm.finish_states()}
        _DepthFinder(kinds, floors or {}, depths, last_read).find(algorithm.rule, 0)
    return depths


@dataclass
class _DepthFinder:
    """Finder of depths.

    `last_wide` is the depth of the last reduction over several parameters so far. `last_read`
    holds, for each state that a finish stores, the greatest depth at which it has been read so far.
    The state's new value gets at least that depth, so that every reader of the old value finds it,
    even one that waits for a matrix op.
    """

    kinds: Kinds
    floors: Mapping[Ref, int]
    depths: dict[Ref, int]
    last_read: dict[str, int]
    last_wide: int = 0

    def find(self, program: Program, condition_depth: int) -> None:
        """Find the depths of a program.

        The conditions of the branches around it are known at `condition_depth`.
        """
        for stmt in program:
            if isinstance(stmt, Assign):
                self._find_target_depth(stmt, condition_depth)
                continue
            inner_depth = max(condition_depth, greatest_depth(reads(stmt.condition), self.depths))
            self._note_reads(stmt.condition, inner_depth)
            self.find(stmt.then, inner_depth)
            self.find(stmt.orelse, inner_depth)

    def _find_target_depth(self, stmt: Assign, condition_depth: int) -> None:
        """Find the depth of the target of an assignment."""
        operand_depth, name = greatest_depth(reads(stmt.value), self.depths), stmt.target.name
        known_depth = self.depths.get(stmt.target, 0) if stmt.target.version else 0
        depth = operand_depth + 1 if needs_sweep(stmt.value, self.kinds) else operand_depth
        floors = (self.floors.get(stmt.target, 0), self.last_read.get(name, 0), known_depth)
        self.depths[stmt.target] = max(condition_depth, depth, *floors)
        if is_wide(stmt.value):
            self.depths[stmt.target] = max(self.depths[stmt.target], self.last_wide)
            self.last_wide = self.depths[stmt.target]
        if self.kinds[stmt.target].axes is not Axes.TENSOR:
            self._note_reads(stmt.value, self.depths[stmt.target])

    def _note_reads(self, value: Expr, depth: int) -> None:
        """Record in `last_read` that a value at this depth reads states."""
        for ref in reads(value):
            if ref.name in self.last_read:
                self.last_read[ref.name] = max(self.last_read[ref.name], depth)


def needs_sweep(value: Expr, kinds: Kinds) -> bool:
    """Tell whether a value is known only after a sweep, or a matrix op, has ended."""
    if not ends_phase(value):
        return False
    axes = {kind_of(ref, kinds.__getitem__).axes for ref in reads(value)}
    draws = any(isinstance(node, Call) and node.op in RANDOM_OPS for node in walk(value))
    return Axes.TENSOR in axes or draws


def greatest_depth(read: Iterable[Ref], depths: Depths) -> int:
    """Return the greatest depth of some names, at which all of them are known."""
    return max((depths[ref] for ref in read), default=0)

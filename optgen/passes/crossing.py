"""Cuts a rule so that nothing small crosses a matrix word.

A matrix word is computed for many parameters at once, from whole tensors that a trip has stored,
and only tensors are handed on: numbers, rows and columns are not. So what is read after the word is
reduced after it, from tensors that the trip computes anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, assigns, expressions
from optgen.ir.plan import reads
from optgen.ir.value_kinds import Axes, Stage
from optgen.passes.levels import Kinds, Levels, levels_of, needs_sweep
from optgen.passes.phases import Cut, cut


def cut_apart(algorithm: Algorithm, kinds: Kinds, early: bool) -> tuple[Cut, bool]:
    """The phases of a rule with versions and named reductions, and whether they store early.

    What a late trip computes anew may need a number that a matrix word needed too: where states are
    stored early, nobody computes them anew.

    Raises:
        RuleError: the same number, rows or columns are needed before a matrix word and after it.
    """
    try:
        return _uncrossed(algorithm, kinds, early), early
    except RuleError:
        if early:
            raise
        return _uncrossed(algorithm, kinds, True), True


def _uncrossed(algorithm: Algorithm, kinds: Kinds, early: bool) -> Cut:
    """Cut, and cut again with what crosses made later, until nothing does."""
    rule = _Rule(algorithm, kinds)
    floors: dict[Ref, int] = {}
    while True:
        levels = levels_of(algorithm, kinds, floors)
        pieces = cut(algorithm, kinds, levels, early)
        later = rule.floors(pieces, levels)
        if not later:
            return pieces
        floors |= later


class _Rule:
    """Who is made of what in a rule with versions; conditions count as read."""

    def __init__(self, algorithm: Algorithm, kinds: Kinds) -> None:
        self.kinds = kinds
        self.read: dict[Ref, set[Ref]] = {}
        self._enter(algorithm.rule, ())
        self.reductions: dict[Ref, Assign] = {}
        self.calls: dict[Ref, Assign] = {}
        for stmt in assigns(algorithm.rule):
            if needs_sweep(stmt.value, kinds):
                made = self.reductions if self._is_small(stmt.target) else self.calls
                made[stmt.target] = stmt
        self.makers = {a.target: a for a in reversed(tuple(assigns(algorithm.rule)))}

    def _enter(self, program: Program, conditions: tuple[Expr, ...]) -> None:
        for stmt in program:
            if isinstance(stmt, Assign):
                read = (r for expr in (*conditions, stmt.value) for r in reads(expr))
                self.read.setdefault(stmt.target, set()).update(read)
            else:
                self._enter(stmt.then, (*conditions, stmt.condition))
                self._enter(stmt.orelse, (*conditions, stmt.condition))

    def floors(self, pieces: Cut, levels: Levels) -> Mapping[Ref, int]:
        """The level that each thing must have at least, so that it is made after the word."""
        found: dict[Ref, int] = {}
        for level, calls in enumerate(pieces.calls):
            for call in calls:
                for ref in self._crossing(pieces, levels, level):
                    for root, least in self._made_later(ref, level).items():
                        self._check(root, call)
                        found[root] = max(least, found.get(root, 0))
        return found

    def _crossing(self, pieces: Cut, levels: Levels, level: int) -> Iterator[Ref]:
        """What is small, made before a matrix word of this level, and read after it."""
        programs = (*pieces.trips[level:], *pieces.finishes[level:])
        read = dict.fromkeys(r for p in programs for e in expressions(p) for r in reads(e))
        for ref in read:
            made = levels[ref] < level or (levels[ref] == level and ref in self.reductions)
            if made and ref in self.read and self._is_small(ref):
                yield ref

    def _made_later(self, ref: Ref, level: int) -> dict[Ref, int]:
        """The reductions that something small is made of, or itself where it is of none."""
        roots = [r for r in self._upstream(ref, small=True) if r in self.reductions]
        return dict.fromkeys(roots, level + 1) if roots else {ref: level}

    def _check(self, root: Ref, call: Assign) -> None:
        """Whoever is made later may not be what the word waits for."""
        if root not in self._upstream(call.target):
            return
        assert isinstance(call.value, Call)
        word = call.value.op
        raise RuleError(
            self.makers[root].place,
            f"what is computed here is read before `{word}` and after it",
            f"numbers, rows and columns do not outlast `{word}`: compute it again after it",
        )

    def _upstream(self, ref: Ref, small: bool = False) -> set[Ref]:
        """All that something is made of, itself too; `small`: back to the reductions only."""
        found: set[Ref] = set()
        waiting = [ref]
        while waiting:
            one = waiting.pop()
            if one not in found and not (small and not self._is_small(one)):
                found.add(one)
                if not (small and one in self.reductions):
                    waiting += self.read.get(one, ())
        return found

    def _is_small(self, ref: Ref) -> bool:
        kind = self.kinds[ref]
        return kind.axes is not Axes.TENSOR and kind.stage is Stage.DEVICE

"""Prove by induction over steps which states, such as a second moment, are never negative."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.nodes import Assign, Program, Ref, assigns
from optgen.passes.ranges import NOT_NEGATIVE, Range, Ranges, declared_ranges, range_of


def proven_ranges(algorithm: Algorithm) -> Ranges:
    """Return the range of every version of every name of a rule, valid in every step.

    A state is nonnegative if its initial value is, and if every step keeps it nonnegative. The
    proof assumes all candidate states to be nonnegative, drops those that a step may make negative,
    and repeats until none is dropped.
    """
    assumed = {s.symbol for s in algorithm.states if _begins_nonnegative(s, algorithm)}
    while True:
        ranges = _ranges_assuming(algorithm, assumed)
        still_proven = {
            name
            for name in assumed
            if all(
                ranges[stmt.target].low >= 0
                for stmt in assigns(algorithm.rule)
                if stmt.target.name == name
            )
        }
        if still_proven == assumed:
            return ranges
        assumed = still_proven


def _begins_nonnegative(state: State, algorithm: Algorithm) -> bool:
    if state.init == "index":
        return True
    if isinstance(state.init, str):
        return declared_ranges(algorithm).get(Ref(state.init), Range()).low >= 0
    return state.init >= 0


def _ranges_assuming(algorithm: Algorithm, assumed: set[str]) -> dict[Ref, Range]:
    """Return the ranges of all names if the assumed states are nonnegative before the step."""
    ranges = declared_ranges(algorithm) | {Ref(name): NOT_NEGATIVE for name in assumed}

    def walk(program: Program) -> None:
        for stmt in program:
            if isinstance(stmt, Assign):
                new = range_of(stmt.value, ranges)
                ranges[stmt.target] = new.union(ranges.get(stmt.target, new))
            else:
                walk(stmt.then)
                walk(stmt.orelse)

    walk(algorithm.rule)
    return ranges

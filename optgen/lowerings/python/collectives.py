"""Find where a rule on sharded parameters needs collectives, and print the requests."""

from __future__ import annotations

from collections.abc import Iterable

from optgen.ir.kinds import Axes, KindLookup, kind_of
from optgen.ir.nodes import Assign, Call, Program, Ref, refs
from optgen.ir.plan import is_maximum, is_reduction

_AXIS_NAMES = {
    Axes.MATRIX: "batch",
    Axes.ROW & ~Axes.MATRIX: "rows",
    Axes.COLUMN & ~Axes.MATRIX: "cols",
}
"""Name of each axis in the printed requests: an argument of the methods of
`optgen.runtime.sharded.driver.Collectives`.
"""
_REDUCED_AXES = {
    f"{line}_{word}": Axes.TENSOR & ~axes
    for line, axes in (("row", Axes.ROW), ("col", Axes.COLUMN))
    for word in ("sum", "max_abs")
}
"""Axes that each reduction to rows or columns reduces. Other reductions reduce all axes."""


def completion_lines(reductions: Iterable[Assign], kinds: KindLookup) -> list[str]:
    """Return the line that requests that ranks complete reductions together, if any needs it."""
    requests = _requests(reductions, kinds)
    return [f"yield [{', '.join(requests)}]"] if requests else []


def _requests(reductions: Iterable[Assign], kinds: KindLookup) -> list[str]:
    """Return a request for each reduction over an axis that may be sharded.

    The request adds the partial sums of all ranks, or takes their maximum, over the reduced axes.
    """
    requests = []
    for reduction in reductions:
        call = reduction.value
        assert isinstance(call, Call)
        axes = kind_of(call.args[0], kinds).axes & _REDUCED_AXES.get(call.op, Axes.TENSOR)
        if axes:
            names = [f'"{name}"' for bit, name in _AXIS_NAMES.items() if axes & bit]
            axis_arguments = names if axes != Axes.TENSOR else []
            arguments = ", ".join([reduction.target.name, *axis_arguments])
            method = "max" if is_maximum(call) else "sum"
            requests.append(f"collectives.{method}({arguments})")
    return requests


def collective_points(program: Program) -> dict[Ref, list[Assign]]:
    """Map each stop of a finish to the reductions that the ranks complete there.

    A stop is named by the target of the statement before it. Adjacent reductions share a stop,
    unless one reads another.
    """
    points: dict[Ref, list[Assign]] = {}
    adjacent: list[Assign] = []
    for stmt in (*program, None):  # None ends the last run of adjacent reductions
        reduces = isinstance(stmt, Assign) and is_reduction(stmt.value)
        read = set(refs(stmt.value)) if isinstance(stmt, Assign) else set()
        if adjacent and (not reduces or any(earlier.target in read for earlier in adjacent)):
            points[adjacent[-1].target] = adjacent
            adjacent = []
        if isinstance(stmt, Assign):
            adjacent += [stmt] if reduces else []
        elif stmt is not None:
            points |= collective_points(stmt.then) | collective_points(stmt.orelse)
    return points

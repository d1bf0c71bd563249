"""Allocate workspace slots for the small values that kernels pass to one another.

A small value is a row, a column, or a number per matrix. A slot has room for one value of every
matrix. A sweep's sums take the first adjacent slots whose values are not read any more. The slots
of all other values come after those of the sums of all sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from optgen.ir.kinds import Axes
from optgen.ir.nodes import Assign, Expr, Ref, assigns, expressions
from optgen.ir.plan import Finish, HostCall, Phase, Plan, Sweep, WideCall, is_maximum, reads
from optgen.lowerings.fused_triton.address_printer import Use, plus_multiple

LINE_AXES = (Axes.ROW, Axes.COLUMN)
"""Axes of values with one number per line of a matrix: per row or per column."""
SMALL_VALUE_AXES = (*LINE_AXES, Axes.MATRIX)
"""Axes of small values."""
_BASE = {Axes.ROW: "row_values", Axes.COLUMN: "column_values", Axes.MATRIX: "matrix_values"}
_STRIDE = {Axes.ROW: "all_rows", Axes.COLUMN: "all_columns", Axes.MATRIX: "depth"}


@dataclass(frozen=True)
class Slots:
    """Slot of each stored small value, by axes, and the number of slots."""

    slots: Mapping[Axes, Mapping[Ref, int]]
    counts: Mapping[Axes, int]

    def holds(self, ref: Ref, axes: Axes) -> bool:
        """Tell whether a value has a slot."""
        return ref in self.slots[axes]

    def address(self, ref: Ref, axes: Axes, use: Use) -> str:
        """Return the address of a value's first number for the program's matrices."""
        return plus_multiple(use(_BASE[axes]), self.slots[axes][ref], use, _STRIDE[axes])

    def first_slot(self, sums: Iterable[Ref], axes: Axes) -> int:
        """Return the first of the adjacent slots of a sweep's sums."""
        return min((self.slots[axes][ref] for ref in sums), default=0)


def allocate_slots(plan: Plan, passed_values: Iterable[Ref]) -> Slots:
    """Allocate slots for the sums of sweeps, and for the values that are passed to other loops."""
    slots: dict[Axes, dict[Ref, int]] = {axes: {} for axes in SMALL_VALUE_AXES}
    for axes in LINE_AXES:
        slots[axes] = _slots_of_sums(plan, axes)
    counts = {axes: max(slots[axes].values(), default=-1) + 1 for axes in SMALL_VALUE_AXES}
    for ref in passed_values:
        axes = plan.kinds[ref].axes
        if axes in SMALL_VALUE_AXES and ref not in slots[axes]:
            slots[axes][ref] = counts[axes]
            counts[axes] += 1
    return Slots(slots, counts)


def _slots_of_sums(plan: Plan, axes: Axes) -> dict[Ref, int]:
    """Allocate adjacent slots for each sweep's sums, where no live value is stored.

    While some tiles of a sweep store its sums, other tiles still read sums of earlier sweeps. So
    the slots that the sweep reads are live too.
    """
    slots: dict[Ref, int] = {}
    for position, phase in enumerate(plan.phases):
        if not isinstance(phase, Sweep):
            continue
        sums = [a.target for a in reductions_to(plan, phase, axes)]
        read = {ref for later in plan.phases[position:] for ref in names_read_by(later)}
        live = {slot for ref, slot in slots.items() if ref in read}
        first = next(n for n in count() if live.isdisjoint(range(n, n + len(sums))))
        slots |= {ref: first + slot for slot, ref in enumerate(sums)}
    return slots


def reductions_to(plan: Plan, sweep: Sweep, axes: Axes) -> list[Assign]:
    """Return the reductions of a sweep to these axes: first the sums, then the maxima."""
    reductions = (a for a in sweep.reductions if plan.kinds[a.target].axes is axes)
    return sorted(reductions, key=lambda a: is_maximum(a.value))


def names_read_by(phase: Phase) -> Iterator[Ref]:
    """Yield every name that a phase reads, repeats included."""
    exprs: Iterable[Expr] = phase.args if isinstance(phase, HostCall) else expressions(phase.body)
    return (ref for expr in exprs for ref in reads(expr))


def names_computed_by(phase: Phase) -> dict[Ref, None]:
    """Return the results of a phase in order, as keys; those of a sweep are its reductions."""
    match phase:
        case WideCall(target):
            return {target: None}
        case Sweep():
            return {a.target: None for a in phase.reductions}
        case Finish(body):
            return {a.target: None for a in assigns(body)}
    return {}


def is_by_matrix(plan: Plan, *phases: Phase) -> bool:
    """Tell whether a phase reads or computes a row, a column or a number per matrix."""
    names = (ref for phase in phases for ref in (*names_computed_by(phase), *names_read_by(phase)))
    return any(plan.kinds[ref].axes in SMALL_VALUE_AXES for ref in names)

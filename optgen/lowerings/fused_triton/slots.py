"""Where phases leave rows, columns and numbers of matrices for one another: a slot each.

The sums of a sweep's rows take the first slots that hold nothing which is still read; behind those
of all sweeps come the values that outlive the loop they are made in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from optgen.ir.nodes import Expr, Ref, assigns, expressions
from optgen.ir.plan import Finish, MatrixCall, Phase, Plan, Sweep, reads
from optgen.ir.value_kinds import Axes

LINES = (Axes.ROW, Axes.COLUMN)
SMALL = (*LINES, Axes.MATRIX)
PLACE = {Axes.ROW: "row_values", Axes.COLUMN: "column_values", Axes.MATRIX: "matrix_values"}
STRIDE = {Axes.ROW: "all_rows", Axes.COLUMN: "all_columns", Axes.MATRIX: "depth"}


@dataclass(frozen=True)
class Slots:
    """The slot of every small value that is kept, by its axes, and how many there are."""

    places: Mapping[Axes, Mapping[Ref, int]]
    counts: Mapping[Axes, int]

    def holds(self, ref: Ref, axes: Axes) -> bool:
        return ref in self.places[axes]

    def place(self, ref: Ref, axes: Axes) -> str:
        """The address of a value's first number, for the matrices at hand."""
        number = self.places[axes][ref]
        times = "" if number == 1 else f"{number} * "
        return f"{PLACE[axes]} + {times}{STRIDE[axes]}" if number else PLACE[axes]

    def first(self, sums: Iterable[Ref], axes: Axes) -> int:
        """Return the slot of the first of a sweep's sums; the others follow it."""
        return min((self.places[axes][ref] for ref in sums), default=0)


def slots_of(plan: Plan, crossing: Iterable[Ref]) -> Slots:
    """Slots for the sums of every sweep, and for the values that cross from a loop to another."""
    places: dict[Axes, dict[Ref, int]] = {axes: {} for axes in SMALL}
    for axes in LINES:
        places[axes] = _places_of_sums(plan, axes)
    counts = {axes: max(places[axes].values(), default=-1) + 1 for axes in SMALL}
    for ref in crossing:
        axes = plan.kinds[ref].axes
        if axes in SMALL and ref not in places[axes]:
            places[axes][ref] = counts[axes]
            counts[axes] += 1
    return Slots(places, counts)


def _places_of_sums(plan: Plan, axes: Axes) -> dict[Ref, int]:
    """Slots for the sums of every sweep, side by side where nothing lies that is read from then on.

    A sweep reads what earlier ones have summed while its own tiles leave their sums.
    """
    places: dict[Ref, int] = {}
    for position, phase in enumerate(plan.phases):
        if not isinstance(phase, Sweep):
            continue
        sums = [a.target for a in phase.reductions if plan.kinds[a.target].axes is axes]
        read = {ref for later in plan.phases[position:] for ref in read_by(later)}
        held = {slot for ref, slot in places.items() if ref in read}
        first = next(n for n in count() if held.isdisjoint(range(n, n + len(sums))))
        places |= {ref: first + slot for slot, ref in enumerate(sums)}
    return places


def read_by(phase: Phase) -> Iterator[Ref]:
    """Every name a phase reads, repeats included."""
    exprs: Iterable[Expr] = phase.args if isinstance(phase, MatrixCall) else expressions(phase.body)
    return (ref for expr in exprs for ref in reads(expr))


def made_small(phase: Phase) -> dict[Ref, None]:
    """What a `Finish` assigns, or a sweep reduces, in order."""
    match phase:
        case Sweep():
            return {a.target: None for a in phase.reductions}
        case Finish(body):
            return {a.target: None for a in assigns(body)}
    return {}


def is_by_matrix(plan: Plan, *phases: Phase) -> bool:
    """Whether any of these phases handles a row, a column or a matrix's number."""
    names = (ref for phase in phases for ref in (*made_small(phase), *read_by(phase)))
    return any(plan.kinds[ref].axes in SMALL for ref in names)

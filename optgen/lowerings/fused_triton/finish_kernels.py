"""The kernels between two sweeps: what the template lays out of a `Finish`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optgen.ir.nodes import Ref, expressions
from optgen.ir.plan import Finish, Phase, Sweep
from optgen.ir.value_kinds import Axes
from optgen.lowerings.fused_triton.expressions import variable
from optgen.lowerings.fused_triton.finish import FinishText
from optgen.lowerings.fused_triton.kernels import Context, Kernels, summed
from optgen.lowerings.fused_triton.places import finish_places, flat_places, needed, times, uses
from optgen.lowerings.fused_triton.properties import load_properties
from optgen.lowerings.fused_triton.slots import LINES, is_by_matrix, made_small, read_by
from optgen.lowerings.fused_triton.split_finishes import sums_left
from optgen.lowerings.fused_triton.sweep import offset, print_numbers

_ARGUMENTS = ("rows", "shapes", "scalars", "values", "partials")


@dataclass(frozen=True)
class FinishKernel:
    """One `Finish` after the phase before it."""

    kernels: Kernels
    finish: Finish
    before: Phase | None

    def context(self) -> Context:
        """What the kernel is made of."""
        plan, row, slots = self.kernels.plan, self.kernels.row, self.kernels.slots
        names = self._names()
        text = [
            *self._given(),
            *print_numbers(row, self.finish.body, known=names),
            *load_properties(expressions(self.finish.body)),
            *FinishText(plan, self.finish, row, slots).lines(),
            *self._left(),
            *self._kept(names),
        ]
        states = self._factors()
        flat = flat_places(parts=bool(self._sums()))
        places = finish_places(slots.counts, states) if self._by_matrix else flat
        lines = [*needed(places, text), *text]
        whole = "\n".join(lines)
        types = [s["type"] for s in states]
        always = {"shapes"} if self._by_matrix else set()
        arguments = [n for n in _ARGUMENTS if n in always or uses(n, whole)]
        flags = self.kernels.flags(whole)
        return {
            "sort": "matrices" if self._by_matrix else "finish",
            "states": states,
            "lines": lines or ["return  # nothing is made of the sums yet"],
            "arguments": arguments,
            "types": [*types, *flags],
            "flag_values": flags,
            "parts": len(sums_left(plan, self.finish)),
            "combines": self._combines(),
        }

    def _combines(self) -> Context | None:
        """How many sums of rows and columns the sweep before has left in parts; None: nothing."""
        if not isinstance(self.before, Sweep):
            return None
        numbers, rows, columns = (
            len(self.kernels.reduced(self.before, axes)) for axes in (Axes.NONE, *LINES)
        )
        if not rows and not columns:
            return None
        firsts = self.kernels.first_slots(self.before)
        return {
            "sums": numbers,
            "rows": rows,
            "columns": columns,
            "row_values": self.kernels.slots.counts[Axes.ROW],
            "first_row": firsts[Axes.ROW],
            "first_column": firsts[Axes.COLUMN],
        }

    @property
    def _by_matrix(self) -> bool:
        """Tell whether each matrix, or each few, has a program of its own.

        Such programs also add up the sums of rows and columns that the last sweep left in parts.
        """
        return is_by_matrix(self.kernels.plan, self.finish) or self._combines() is not None

    def _sums(self) -> list[Context]:
        """The numbers that the phase before has left in parts."""
        match self.before:
            case Sweep() as sweep:
                return self.kernels.reduced(sweep, Axes.NONE)
            case Finish() as finish:
                return [summed(a) for a in sums_left(self.kernels.plan, finish)]
        return []

    def _given(self) -> list[str]:
        """The lines that add those numbers up."""
        place, count, first = "partials", "blocks", 0
        if isinstance(self.before, Finish):
            place, count, first = "parts", "groups", self._first_part(self.before)
        return [
            f"{one['name']} = {'pick_largest' if one['largest'] else 'add_up'}"
            f"({times(place, n, count)}, {count})"
            for n, one in enumerate(self._sums(), first)
        ]

    def _first_part(self, finish: Finish) -> int:
        """Return the number of sums that earlier finishes leave in parts: ours go behind them."""
        plan = self.kernels.plan
        position = next(n for n, phase in enumerate(plan.phases) if phase is finish)
        earlier = (p for p in plan.phases[:position] if isinstance(p, Finish))
        return sum(len(sums_left(plan, p)) for p in earlier)

    def _names(self) -> list[str]:
        """The numbers whose values this kernel knows: those given to it, and those it makes."""
        left = {a.target for a in sums_left(self.kernels.plan, self.finish)}
        own = [r for r in made_small(self.finish) if self._is_number(r)]
        own_names = (variable(r.name) for r in own if r not in left)
        return list(dict.fromkeys([*(s["name"] for s in self._sums()), *own_names]))

    def _is_number(self, ref: Ref) -> bool:
        return self.kernels.plan.kinds[ref].axes is Axes.NONE

    def _left(self) -> list[str]:
        """The lines that leave this program's part of sums over all matrices."""
        left = sums_left(self.kernels.plan, self.finish)
        return [
            f"tl.store({times('parts', n, 'groups')} + group, {variable(a.target.name)})"
            for n, a in enumerate(left, self._first_part(self.finish))
        ]

    def _kept(self, names: Sequence[str]) -> list[str]:
        """The lines that keep numbers for later kernels; one program a tensor does."""
        row = self.kernels.row
        lines = [
            f"tl.store({offset('scalars', row.place(n))}, {n})" for n in names if n in row.numbers
        ]
        if self._by_matrix and lines:
            return ["if group == 0:", *(f"    {line}" for line in lines)]
        return lines

    def _factors(self) -> list[Context]:
        """The row and column states that are read or stored."""
        asked = {r.name for r in (*made_small(self.finish), *read_by(self.finish))}
        return [
            self.kernels.place(s.symbol) | {"shape": s.shape}
            for s in self.kernels.plan.algorithm.factor_states()
            if s.symbol in asked
        ]

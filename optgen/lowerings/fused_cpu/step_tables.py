"""Print the tables of a rule with phases: its values, its steps and its passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from optgen.ir.kinds import Axes
from optgen.lowerings.fused_cpu.expression_printer import constant
from optgen.lowerings.fused_cpu.line_layout import indented, wrapped_list
from optgen.lowerings.fused_cpu.pass_schedule import Pass, tiling_strategies
from optgen.lowerings.fused_cpu.phase_steps import PhaseSteps
from optgen.lowerings.fused_cpu.step import Step


@dataclass(frozen=True)
class StepTables:
    """Printer of the tables of steps, and of what the steps read and write."""

    phase_steps: PhaseSteps
    streams: Mapping[str, Axes]  # of all plans, in the table's order
    scalar_states: Sequence[str]  # symbols

    @cached_property
    def stored_values(self) -> dict[str, Axes]:
        """The axes of each stored value. A value that a loop only sums is not stored."""
        read = {n for s in self.phase_steps.steps if not s.is_total_sum for n in s.reads}
        only_summed = {n for s in self.phase_steps.steps if s.is_total_sum for n in s.reads} - read
        return {n: axes for n, axes in self.phase_steps.axes.items() if n not in only_summed}

    def values(self) -> list[str]:
        """Declare the indices of the values that are not streams, after those of the streams."""
        others = [constant(n) for n in self.stored_values if n not in self.streams]
        first, *rest = [*others, "VALUES"]
        return wrapped_list("enum { ", [f"{first} = STREAMS", *rest], " };", column=4)

    def axes(self) -> list[str]:
        """Declare the axes of the stored values."""
        names = [axes.name for axes in self.stored_values.values()]
        return wrapped_list("static constexpr int AXES[] = {", names, "};", column=4)

    @property
    def has_axes(self) -> bool:
        """Tell whether a step reads or writes row or column values."""
        return any(axes is not Axes.TENSOR for axes in self._used_values().values())

    def _used_values(self) -> dict[str, Axes]:
        used = {n for step in self.phase_steps.steps for n in (*step.reads, *step.writes)}
        return {n: axes for n, axes in self.phase_steps.axes.items() if n in used}

    def steps(self) -> list[str]:
        """Declare the steps: their indices, and the table of what they read and write."""
        index_names = [step.index_name for step in self.phase_steps.steps]
        lines = wrapped_list("enum { ", [*index_names, "STEP_COUNT"], " };", column=4)
        lines.append("static constexpr Step STEPS[] = {")
        for step in self.phase_steps.steps:
            step_type = {"": "LOOP", "max_abs": "MAX"}.get(step.reduction, step.reduction.upper())
            step_type = "DRAW" if step.draws else step_type
            reads = () if step.is_total_sum else step.reads
            writes = [n for n in step.writes if n in self.stored_values]
            fields = [step.axes.name, _set(reads), _set(writes), str(self._index_of(step))]
            lines += indented(wrapped_list("{", [f"Step::{step_type}", *fields], "},", column=8))
        return [*lines, "};"]

    def _index_of(self, step: Step) -> int:
        """Return the index of a reduction among those to its axes, or of the number it computes."""
        if step.reduction and step.axes is Axes.NONE:
            return self.phase_steps.numbers.index(step.numbers_written[0])
        reductions = self._reductions(step.axes)
        return reductions.index(step) if step in reductions else 0

    def _reductions(self, axes: Axes) -> list[Step]:
        """Return the reductions to these axes.

        Reductions to rows and columns are left out unless they reduce elements, because the others
        have all their operands in one place.
        """
        reductions = (
            step for step in self.phase_steps.steps if step.reduction and step.axes is axes
        )
        return [step for step in reductions if step.over_elements or axes is Axes.MATRIX]

    def passes(self) -> list[str]:
        """Declare the passes of all tiling strategies, and the sizes of buffers."""
        used = {n: axes for n, axes in self.streams.items() if n in self._used_values()}
        strategies = tiling_strategies(self.phase_steps.steps, used, self.has_axes)
        lines = [line for name, passes in strategies.items() for line in _pass_table(name, passes)]
        pass_counts = ", ".join(str(len(passes)) for passes in strategies.values())
        names = (name if passes else "nullptr" for name, passes in strategies.items())
        rows, columns, matrices = (
            len(self._reductions(a)) for a in (Axes.ROW, Axes.COLUMN, Axes.MATRIX)
        )
        return [
            *lines,
            *wrapped_list("static constexpr const Pass* PASSES[] = {", names, "};", column=4),
            f"static constexpr int PASS_COUNTS[] = {{{pass_counts}}};",
            f"static constexpr bool HAS_AXES = {str(self.has_axes).lower()};",
            f"static constexpr int NUMBERS = {len(self.phase_steps.numbers)};",
            *self._stored_numbers(),
            f"static constexpr int ROW_REDUCTIONS = {rows}, COLUMN_REDUCTIONS = {columns};",
            f"static constexpr int MATRIX_REDUCTIONS = {matrices};",
        ]

    def _stored_numbers(self) -> list[str]:
        """Declare which numbers are new values of scalar states, if any are."""
        numbers = self.phase_steps.numbers
        pairs = [
            (numbers.index(symbol), symbol) for symbol in self.scalar_states if symbol in numbers
        ]
        stored = [f"{{{number}, {constant(symbol)}}}" for number, symbol in pairs]
        head = "static constexpr StoredNumber STORED_NUMBERS[] = {"
        return wrapped_list(head, stored, "};", column=4) if stored else []


def _set(names: Iterable[str]) -> str:
    return f"set({', '.join(map(constant, names))})"


def _pass_table(name: str, passes: Sequence[Pass]) -> list[str]:
    """Declare the passes of one tiling strategy."""
    if not passes:
        return []
    lines = [f"static constexpr Pass {name}[] = {{"]
    for each in passes:
        fields = (
            [step.index_name for step in each.on_tiles],
            [step.index_name for step in each.after_tiles],
            [constant(value) for value in each.stores],
        )
        sets = [line for names in fields for line in wrapped_list("set(", names, "),", column=16)]
        lines += indented(["{", *indented(sets), "},"])
    return [*lines, "};"]

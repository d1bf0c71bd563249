"""Build the printers of the loops of a rule with phases: their arrays, numbers and sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from optgen.ir.kinds import Axes
from optgen.lowerings.fused_cpu.expression_printer import variable
from optgen.lowerings.fused_cpu.loop_ir import Loop, LoopArray
from optgen.lowerings.fused_cpu.loop_printer import LoopPrinter
from optgen.lowerings.fused_cpu.phase_steps import PhaseSteps
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram
from optgen.lowerings.fused_cpu.step import Step
from optgen.lowerings.fused_cpu.sweep_printer import COMPUTE_TYPE, Sum, SweepPrinter


@dataclass(frozen=True)
class StepLoops:
    """Builder of the printer of each step that is a loop over values with axes."""

    program: ScalarProgram
    phase_steps: PhaseSteps
    streams: Mapping[str, Axes]
    stored_values: Collection[str]
    has_axes: bool  # whether a step reads or writes row or column values

    def printer(self, step: Step) -> LoopPrinter:
        """Return the printer of a loop with the arrays and sums that it needs."""
        plan, sums = self.phase_steps.plan, self._sums(step)
        used = {*step.reads, *step.writes}
        arrays = [self._array(name, step) for name in self.stored_values if name in used]
        numbers = {n: f"numbers.{variable(n)}" for n in step.numbers_read}
        loop = Loop(arrays, step.body, numbers, [s.operand for s in sums])
        if step.axes is not Axes.TENSOR:
            return LoopPrinter(plan, loop, self.program)
        used_axes = [*(s.axes for s in sums), *(array.axes for array in arrays)]
        by_rows = any(axes not in (Axes.NONE, Axes.TENSOR) for axes in used_axes)
        all_elements = "rows * n" if self.has_axes else "n"
        return SweepPrinter(plan, loop, self.program, sums, by_rows, all_elements)

    def _sums(self, loop: Step) -> list[Sum]:
        """Return the sums that a loop over elements accumulates."""
        return [
            Sum(step.name, step.reads[0], step.axes)
            for step in self.phase_steps.steps
            if loop.over_elements
            and step.reduction == "sum"
            and step.over_elements
            and step.reads[0] in loop.writes
        ]

    def _array(self, name: str, step: Step) -> LoopArray:
        """Return the array of a value as a loop uses it."""
        axes = self.phase_steps.axes[name]
        reductions = [
            s.reduction
            for s in self.phase_steps.steps
            if s.reduction and s.over_elements and name in s.reads
        ]
        # A column value varies along a loop over elements, so it is never one number there.
        varies = axes is step.axes or (axes is Axes.COLUMN and step.axes is Axes.TENSOR)
        only_summed = step.over_elements and "sum" in reductions and "max_abs" not in reductions
        type_ = "S" if name in self.streams and axes is Axes.TENSOR else COMPUTE_TYPE
        type_ = type_ if step.axes is Axes.TENSOR else "C"
        return LoopArray(
            name,
            loaded=name in step.reads,
            stored=name in step.writes,
            when=self._existence_conditions.get(name),
            axes=axes,
            has_fewer_axes=not varies,
            only_summed=only_summed,
            type=type_,
        )

    @cached_property
    def _existence_conditions(self) -> dict[str, str | None]:
        return {s.symbol: s.when for s in self.phase_steps.plan.algorithm.states}

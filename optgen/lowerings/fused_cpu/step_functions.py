"""Print the C++ functions of the steps of a rule with phases: their definitions, and calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from optgen.contract.states import Condition
from optgen.ir.kinds import Axes
from optgen.ir.plan import Plan
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.fused_cpu.cpp_text import (
    constant,
    indented,
    variable,
    wrapped_list,
    wrapped_statement,
)
from optgen.lowerings.fused_cpu.kernel_steps import PhaseSteps, Step
from optgen.lowerings.fused_cpu.loop_body import key_of_draw
from optgen.lowerings.fused_cpu.loop_printer import Loop, LoopArray, LoopPrinter, Parameter
from optgen.lowerings.fused_cpu.scalar_program import NumberFunction, NumberPrinter, ScalarProgram

_COLUMN = 8  # of the text at which a function's lines begin
_COMPUTE_TYPE = "ComputeScalar<S>"
"""Element type of arrays that are not streams: the compute type."""


@dataclass(frozen=True)
class StepFunctions:
    """Builder of the functions of all steps, except reductions, which the headers compute."""

    plan: Plan
    program: ScalarProgram
    phase_steps: PhaseSteps
    streams: Mapping[str, Axes]
    stored_values: Collection[str]
    has_axes: bool  # whether a step reads or writes row or column values

    def all(self) -> list[tuple[Step, DrawFunction | NumberFunction | LoopPrinter]]:
        """Return the draws with their functions, then the loops with theirs."""
        steps, algorithm = self.phase_steps.steps, self.plan.algorithm
        print_number = NumberPrinter(algorithm, self.program, {})
        return [
            *((step, DrawFunction(step, print_number)) for step in steps if step.draws),
            *(
                (step, NumberFunction(step, algorithm, self.program))
                if step.axes is Axes.NONE
                else (step, self._printer(step))
                for step in steps
                if step.is_loop
            ),
        ]

    def _printer(self, step: Step) -> LoopPrinter:
        """Return the printer of a loop with the arrays and sums that it needs."""
        plan, sums = self.phase_steps.plan, self._sums(step)
        used = {*step.reads, *step.writes}
        arrays = [self._array(name, step) for name in self.stored_values if name in used]
        numbers = {n: f"numbers.{variable(n)}" for n in step.numbers_read}
        loop = Loop(arrays, step.body, numbers, [s.operand for s in sums])
        if step.axes is not Axes.TENSOR:
            return LoopPrinter(step.name, plan, loop, self.program)
        used_axes = [*(s.axes for s in sums), *(array.axes for array in arrays)]
        by_rows = any(axes not in (Axes.NONE, Axes.TENSOR) for axes in used_axes)
        all_elements = "rows * n" if self.has_axes else "n"
        return _ElementLoop(step.name, plan, loop, self.program, sums, by_rows, all_elements)

    def _sums(self, loop: Step) -> list[_Sum]:
        """Return the sums that a loop over elements accumulates."""
        return [
            _Sum(step.name, step.reads[0], step.axes)
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
        type_ = "S" if name in self.streams and axes is Axes.TENSOR else _COMPUTE_TYPE
        return LoopArray(
            name,
            loaded=name in step.reads,
            stored=name in step.writes,
            when=self._existence_conditions.get(name),
            axes=axes,
            has_fewer_axes=not varies,
            only_summed=step.over_elements and "sum" in reductions and "max_abs" not in reductions,
            type=type_ if step.axes is Axes.TENSOR else "C",
        )

    @cached_property
    def _existence_conditions(self) -> dict[str, Condition | None]:
        return {s.symbol: s.condition for s in self.phase_steps.plan.algorithm.states}


@dataclass(frozen=True)
class DrawFunction:
    """Function that fills an array with the random numbers of `n` elements.

    Its argument `place` is the index of the first element.
    """

    step: Step
    print_number: NumberPrinter

    def definition(self) -> list[str]:
        """Return the lines of the function template."""
        assert self.step.draws
        key = key_of_draw(self.step.draws, self.print_number)
        parameters = ["const Scalars& scalars", "i64 place", "i64 n", "C* to"]
        return [
            "template <class C>",
            *wrapped_list(f"static void {self.step.name}(", parameters, ") {", column=4),
            *indented(wrapped_statement(f"draw_numbers({key}, place, n, to);", _COLUMN)),
            "}",
        ]

    def call(self) -> list[str]:
        """Return the line that calls the function."""
        return [f"return {self.step.name}(inputs.scalars, place, n, to);"]


@dataclass(frozen=True)
class _Sum:
    """Sum that a loop accumulates: its name, its operand, and the axes it sums to."""

    name: str
    operand: str
    axes: Axes


class _ElementLoop(LoopPrinter):
    """Printer of one loop over elements.

    A loop with row or column values runs row by row (`by_rows`). With the template parameter
    `EXPANDED` it runs over all elements at once: row and column values are broadcast to every
    element beforehand, and the operands of row and column sums are stored in a buffer.
    `all_elements` is the C++ text of the number of elements.
    """

    types = ("S", "C")

    def __init__(
        self,
        name: str,
        plan: Plan,
        loop: Loop,
        program: ScalarProgram,
        sums: Sequence[_Sum],
        by_rows: bool,
        all_elements: str,
    ) -> None:
        self._tensor_sums = [s for s in sums if s.axes is Axes.NONE]
        self._row_sums = [s for s in sums if s.axes is Axes.ROW]
        self._column_sums = [s for s in sums if s.axes is Axes.COLUMN]
        self._axis_sums = [*self._row_sums, *self._column_sums]
        self._by_rows, self._all_elements = by_rows, all_elements
        super().__init__(name, plan, loop, program)

    def loop_lines(self) -> list[str]:
        """Return the loop, with its accumulators, inside a loop over rows if it runs by rows."""
        loop = ["for (i64 i = 0; i < n; i += LANES<C>) {", *self.inside(), "}"]
        lines = [*self._accumulators(), *self._pragma(), *loop, *self._add_accumulators()]
        if not self._by_rows:
            return lines
        elements = (array.name for array in self.loop.arrays if array.axes is Axes.TENSOR)
        increments = (f"{variable(plural(name))} += pitch" for name in elements)
        lines += wrapped_list("", increments, ";", _COLUMN + 4)
        return ["for (i64 row = 0; row < rows; ++row) {", *indented(lines), "}"]

    @property
    def reads_expanded(self) -> bool:
        """Tell whether the loop reads `EXPANDED`, as loops with row or column sums do."""
        return super().reads_expanded or bool(self._axis_sums)

    def parameters(self) -> list[Parameter]:
        """Return the function's parameters: only those that it reads."""
        sums = [("Numbers&", "sums")] if self._tensor_sums else []
        extent = [("i64", name) for name in (("rows", "n", "pitch") if self._by_rows else ("n",))]
        sum_arrays = ((f"{_COMPUTE_TYPE}* __restrict", _sum_array(s)) for s in self._axis_sums)
        return [*self.input_parameters(), *sums, *extent, *self.array_parameters(), *sum_arrays]

    def arguments(self) -> list[str]:
        """Return the arguments of a call: those of `LoopPrinter`, with sums and extents."""
        sums = ["inputs.named_partials()"] if self._tensor_sums else []
        extent = ["rows", "n", "pitch"] if self._by_rows else [self._all_elements]
        names = (*(array.name for array in self.loop.arrays), *(s.name for s in self._axis_sums))
        arrays = (f"at[{constant(name)}]" for name in names)
        return [*self.input_arguments(), *sums, *extent, *arrays]

    def stores(self) -> list[str]:
        """Return the statements that write arrays and accumulate sums."""
        return [*super().stores(), *map(_accumulation, self._tensor_sums), *self._axis_sum_lines()]

    def load_text(self, array: LoopArray) -> str:
        """Return the text that loads an array's element; arrays with fewer axes are broadcast."""
        name = variable(plural(array.name))
        if not array.has_fewer_axes:
            return f"load_as<S, C>({name} + i)"
        return f"broadcast<S, C, EXPANDED>({name}, i, {'row' if array.axes is Axes.ROW else '0'})"

    def store_text(self, name: str) -> str:
        """Return the statement that stores a value in its array."""
        return f"store_as<S>({variable(plural(name))} + i, {variable(name)});"

    def _axis_sum_lines(self) -> list[str]:
        """Return the lines that store the operands of row and column sums, or accumulate them."""
        if not self._axis_sums:
            return []
        operands = (array.name for array in self.loop.arrays if array.only_summed)
        return [
            "if constexpr (EXPANDED) {",
            *indented(map(self.store_text, operands)),
            "} else {",
            *indented(map(_accumulation, self._row_sums)),
            *indented(
                f"add_to<S>({_sum_array(s)} + i, {variable(s.operand)});" for s in self._column_sums
            ),
            "}",
        ]

    def _accumulators(self) -> list[str]:
        """Declare the accumulators of the loop."""
        names = [f"{variable(s.name)} = 0" for s in (*self._tensor_sums, *self._row_sums)]
        return [f"C {', '.join(names)};", ""] if names else []

    def _pragma(self) -> list[str]:
        names = [variable(s.name) for s in (*self._tensor_sums, *self._row_sums)]
        reduction = f"reduction(+ : {', '.join(names)})"
        return [f"#pragma omp simd if(LANES<C> == 1) {reduction}"] if names else []

    def _add_accumulators(self) -> list[str]:
        """Add the accumulators of the loop to the sums."""
        lines = [
            f"sums.{variable(s.name)} += lane_sum({variable(s.name)});" for s in self._tensor_sums
        ]
        if self._row_sums:
            row_lines = (
                f"{_sum_array(s)}[row] += lane_sum({variable(s.name)});" for s in self._row_sums
            )
            lines += ["if constexpr (!EXPANDED) {", *indented(row_lines), "}"]
        return ["", *lines] if lines else []


def _accumulation(total: _Sum) -> str:
    return f"{variable(total.name)} += {variable(total.operand)};"


def _sum_array(total: _Sum) -> str:
    return variable(plural(total.name))

"""Print a loop over elements that also accumulates sums: of the tensor, of rows, of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optgen.ir.generated_names import plural
from optgen.ir.kinds import Axes
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu.expression_printer import constant, variable
from optgen.lowerings.fused_cpu.line_layout import indented, wrapped_list
from optgen.lowerings.fused_cpu.loop_ir import Loop, LoopArray
from optgen.lowerings.fused_cpu.loop_printer import LoopPrinter
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram

_COLUMN = 8  # of the text at which lines begin
COMPUTE_TYPE = "ComputeScalar<S>"
"""Element type of arrays that are not streams: the compute type."""


@dataclass(frozen=True)
class Sum:
    """Sum that a loop accumulates: its name, its operand, and the axes it sums to."""

    name: str
    operand: str
    axes: Axes


class SweepPrinter(LoopPrinter):
    """Printer of one loop over elements.

    A loop with row or column values runs row by row (`by_rows`). With the template parameter
    `EXPANDED` it runs over all elements at once: row and column values are broadcast to every
    element beforehand, and the operands of row and column sums are stored in a buffer.
    `all_elements` is the C++ text of the number of elements.
    """

    def __init__(
        self,
        plan: Plan,
        loop: Loop,
        program: ScalarProgram,
        sums: Sequence[Sum],
        by_rows: bool,
        all_elements: str,
    ) -> None:
        self._tensor_sums = [s for s in sums if s.axes is Axes.NONE]
        self._row_sums = [s for s in sums if s.axes is Axes.ROW]
        self._column_sums = [s for s in sums if s.axes is Axes.COLUMN]
        self._by_rows, self._all_elements = by_rows, all_elements
        super().__init__(plan, loop, program)

    def lines(self) -> list[str]:
        """Return the body of the function."""
        loop = self._loop_over_rows() if self._by_rows else self._flat_loop()
        return [*self.constants(), "", *loop] if self.constants() else loop

    def parameters(self) -> list[str]:
        """Return the function's parameters: only those that it reads."""
        sums = ["Numbers& sums"] if self._tensor_sums else []
        extent = ["i64 rows", "i64 n", "i64 pitch"] if self._by_rows else ["i64 n"]
        sum_arrays = (f"{COMPUTE_TYPE}* __restrict {_sum_array(s)}" for s in self._axis_sums())
        return [*self.input_parameters(), *sums, *extent, *self.arrays(), *sum_arrays]

    def arguments(self, addresses: str, prefix: str) -> list[str]:
        """Return the arguments of a call: those of `LoopPrinter`, with sums and extents."""
        sums = [f"{prefix}named_partials()"] if self._tensor_sums else []
        extent = ["rows", "n", "pitch"] if self._by_rows else [self._all_elements]
        names = (*(array.name for array in self.loop.arrays), *(s.name for s in self._axis_sums()))
        arrays = (f"{addresses}[{constant(name)}]" for name in names)
        return [*self.input_arguments(prefix), *sums, *extent, *arrays]

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
        if not self._axis_sums():
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

    def _axis_sums(self) -> list[Sum]:
        return [*self._row_sums, *self._column_sums]

    def _flat_loop(self) -> list[str]:
        return [*self._accumulators(), *self._loop_lines(), *self._add_accumulators()]

    def _loop_over_rows(self) -> list[str]:
        increments = (f"{a} += pitch" for a in self._arrays_of_elements())
        inside = [
            *self._accumulators(),
            *self._loop_lines(),
            *self._add_accumulators(),
            *wrapped_list("", increments, ";", _COLUMN + 4),
        ]
        return ["for (i64 row = 0; row < rows; ++row) {", *indented(inside), "}"]

    def _arrays_of_elements(self) -> Iterator[str]:
        """Yield the arrays that have one number per element."""
        arrays = (array for array in self.loop.arrays if array.axes is Axes.TENSOR)
        return (variable(plural(array.name)) for array in arrays)

    def _accumulators(self) -> list[str]:
        """Declare the accumulators of the loop."""
        names = [f"{variable(s.name)} = 0" for s in (*self._tensor_sums, *self._row_sums)]
        return [f"C {', '.join(names)};", ""] if names else []

    def _loop_lines(self) -> list[str]:
        blocks = [
            indented(block) for block in (self.loads(), self.body.lines, self.stores()) if block
        ]
        inside = [line for block in blocks for line in ("", *block)][1:]
        return [*self._pragma(), "for (i64 i = 0; i < n; i += LANES<C>) {", *inside, "}"]

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


def _accumulation(total: Sum) -> str:
    return f"{variable(total.name)} += {variable(total.operand)};"


def _sum_array(total: Sum) -> str:
    return variable(plural(total.name))

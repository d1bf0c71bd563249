"""Describe the kernel of a `Finish` for the templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optgen.ir.kinds import Axes
from optgen.ir.nodes import Ref, expressions
from optgen.ir.plan import Finish, Phase, Sweep
from optgen.lowerings.fused_triton.address_printer import (
    finish_addresses,
    flat_addresses,
    needed_lines,
    plus_multiple,
    uses,
)
from optgen.lowerings.fused_triton.expression_printer import variable
from optgen.lowerings.fused_triton.finish_printer import FinishPrinter
from optgen.lowerings.fused_triton.properties import load_properties
from optgen.lowerings.fused_triton.split_finishes import first_part, partial_sums
from optgen.lowerings.fused_triton.sweep_kernels import Context, Kernels, reduction_context
from optgen.lowerings.fused_triton.sweep_printer import plus_offset, print_numbers
from optgen.lowerings.fused_triton.workspace_slots import (
    LINE_AXES,
    is_by_matrix,
    names_computed_by,
    names_read_by,
)

_ARGUMENTS = ("table", "shapes", "scalars", "values", "partials")


@dataclass(frozen=True)
class FinishKernel:
    """Kernel of one `Finish`."""

    kernels: Kernels
    finish: Finish
    previous_phase: Phase | None

    def context(self) -> Context:
        """Return the template's variables."""
        plan, packed, slots = self.kernels.plan, self.kernels.packed, self.kernels.slots
        known_numbers = self._known_numbers()
        body_lines = [
            *self._lines_that_combine_sums(),
            *print_numbers(packed, self.finish.body, known_names=known_numbers),
            *load_properties(expressions(self.finish.body)),
            *FinishPrinter(plan, self.finish, packed, slots).lines(),
            *self._partial_stores(),
            *self._number_stores(known_numbers),
        ]
        factor_states = self._factor_states()
        states = [*factor_states, *self._stored_scalars()]
        tensor_addresses = flat_addresses(reads_partials=bool(self._sums_of_previous_phase()))
        addresses = (
            finish_addresses(slots.counts, factor_states) if self._by_matrix else tensor_addresses
        )
        lines = [*needed_lines(addresses, body_lines), *body_lines]
        body = "\n".join(lines)
        state_types = [s["type"] for s in states]
        always_passed = {"shapes"} if self._by_matrix else set()
        arguments = [n for n in _ARGUMENTS if n in always_passed or uses(n, body)]
        flags = self.kernels.flags(body)
        return {
            "kind": "finish_matrices" if self._by_matrix else "finish",
            "states": states,
            "lines": lines or ["return  # nothing reads the sums yet"],
            "arguments": arguments,
            "types": [*state_types, *flags],
            "flag_values": flags,
            "partial_sum_count": len(partial_sums(plan, self.finish)),
            "line_sums": self._partial_row_and_column_sums(),
        }

    def _partial_row_and_column_sums(self) -> Context | None:
        """Return how many partial row and column sums the previous sweep stores, and their slots.

        Return None if the previous phase stores no such sums.
        """
        if not isinstance(self.previous_phase, Sweep):
            return None
        sums, rows, columns = (
            self.kernels.reductions(self.previous_phase, axes) for axes in (Axes.NONE, *LINE_AXES)
        )
        if not rows and not columns:
            return None
        first_slots = self.kernels.first_slots(self.previous_phase)
        return {
            "sums": len(sums),
            "rows": len(rows),
            "columns": len(columns),
            "row_maxima": sum(row["is_maximum"] for row in rows),
            "column_maxima": sum(column["is_maximum"] for column in columns),
            "row_values": self.kernels.slots.counts[Axes.ROW],
            "first_row": first_slots[Axes.ROW],
            "first_column": first_slots[Axes.COLUMN],
        }

    @property
    def _by_matrix(self) -> bool:
        """Tell whether the kernel has one program for every few matrices, not one per tensor.

        Such programs also combine the partial row and column sums of the previous sweep.
        """
        combines_lines = self._partial_row_and_column_sums() is not None
        return combines_lines or is_by_matrix(self.kernels.plan, self.finish)

    def _sums_of_previous_phase(self) -> list[Context]:
        """Return the sums whose partial sums the previous phase has stored."""
        match self.previous_phase:
            case Sweep() as sweep:
                return self.kernels.reductions(sweep, Axes.NONE)
            case Finish() as finish:
                return [reduction_context(a) for a in partial_sums(self.kernels.plan, finish)]
        return []

    def _lines_that_combine_sums(self) -> list[str]:
        """Return the lines that combine the partial sums of the previous phase."""
        base, count_name, first_index = "sums", "sum_count", 0
        if isinstance(self.previous_phase, Finish):
            base, count_name = "part_sums", "part_sum_count"
            first_index = first_part(self.kernels.plan, self.previous_phase)
        return [
            f"{s['name']} = {'pick_largest' if s['is_maximum'] else 'add_up'}"
            f"({plus_multiple(base, n, count_name)}, {count_name})"
            for n, s in enumerate(self._sums_of_previous_phase(), first_index)
        ]

    def _known_numbers(self) -> list[str]:
        """Return the numbers that this kernel knows: combined from partial sums, or computed."""
        partial_targets = {a.target for a in partial_sums(self.kernels.plan, self.finish)}
        computed = [r for r in names_computed_by(self.finish) if self._is_number(r)]
        names = (variable(r.name) for r in computed if r not in partial_targets)
        return list(dict.fromkeys([*(s["name"] for s in self._sums_of_previous_phase()), *names]))

    def _is_number(self, ref: Ref) -> bool:
        return self.kernels.plan.kinds[ref].axes is Axes.NONE

    def _partial_stores(self) -> list[str]:
        """Return the lines that store this program's partial sum of each sum over all matrices."""
        reductions = partial_sums(self.kernels.plan, self.finish)
        return [
            f"tl.store({plus_multiple('parts', part, 'groups')} + matrix_group, {variable(name)})"
            for part, name in enumerate(
                (reduction.target.name for reduction in reductions),
                first_part(self.kernels.plan, self.finish),
            )
        ]

    def _number_stores(self, names: Sequence[str]) -> list[str]:
        """Return the lines that store numbers for later kernels, in one program per tensor."""
        packed = self.kernels.packed
        lines = [
            f"tl.store({plus_offset('scalars', packed.offset(n))}, {n})"
            for n in names
            if n in packed.finish_numbers
        ]
        for state in self._stored_scalars():
            address = f"tl.load(entry + {state['address']} * num_tensors)"
            pointer = f"{address}.to(tl.pointer_type({state['type']}))"
            lines.append(f"{state['list']} = {pointer}")
            lines.append(f"tl.store({state['list']}, {state['name']}.to({state['type']}))")
        if self._by_matrix and lines:
            return ["if matrix_group == 0:", *(f"    {line}" for line in lines)]
        return lines

    def _stored_scalars(self) -> list[Context]:
        """Return the scalar states whose new values the kernel computes."""
        computed = {ref.name for ref in names_computed_by(self.finish)}
        return [
            self.kernels.stream_context(s.symbol) | {"name": variable(s.symbol)}
            for s in self.kernels.plan.algorithm.scalar_states()
            if s.symbol in computed
        ]

    def _factor_states(self) -> list[Context]:
        """Return the row and column states that the kernel reads or stores."""
        used = {r.name for r in (*names_computed_by(self.finish), *names_read_by(self.finish))}
        return [
            self.kernels.stream_context(s.symbol) | {"shape": s.shape}
            for s in self.kernels.plan.algorithm.factor_states()
            if s.symbol in used
        ]

"""Describe the kernel of a `Finish` between two sweeps; its body computes in float64.

Each program of the kernel takes a few matrices. Statements on rows are in a loop over the rows, and
statements on columns in a loop over the columns. A loop's reduction is known after the loop, so a
statement on rows or columns that reads it is in a loop of the next stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    always_assigned,
    assigns,
    expressions,
    filter_assigns,
)
from optgen.ir.ops import OPS
from optgen.ir.plan import Finish, Phase, Plan, Sweep, is_maximum, is_reduction, reads
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.fused_triton.address_printer import (
    Use,
    UsedNames,
    existence_variable,
    finish_addresses,
    flat_addresses,
    indented,
    needed_lines,
    plus_multiple,
    plus_offset,
)
from optgen.lowerings.fused_triton.expression_printer import (
    ExpressionPrinter,
    load_properties,
    read_property,
    variable,
)
from optgen.lowerings.fused_triton.prologue import PackedScalars
from optgen.lowerings.fused_triton.sweeps import (
    Context,
    Kernels,
    print_numbers,
    print_statements,
    reduction_context,
)
from optgen.lowerings.fused_triton.workspace_slots import (
    LINE_AXES,
    Slots,
    is_by_matrix,
    names_computed_by,
    names_read_by,
)
from optgen.passes.split_finishes import first_part, partial_sums, with_conditions

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
        known_numbers, used = self._known_numbers(), UsedNames()
        body_lines = [
            *self._lines_that_combine_sums(used),
            *print_numbers(packed, self._body_as_computed(), known_names=known_numbers, use=used),
            *load_properties(expressions(self.finish.body), used),
            *FinishPrinter(plan, self.finish, packed, slots, used).lines(),
            *self._partial_stores(used),
            *self._number_stores(known_numbers, used),
        ]
        factor_states = self._factor_states()
        states = [*factor_states, *self._stored_scalars()]
        addresses = flat_addresses(reads_partials=bool(self._sums_of_previous_phase()))
        if self._by_matrix:
            addresses = finish_addresses(slots.counts, factor_states)
            used("shapes")  # the kernel that calls this one reads them
        lines = [*needed_lines(addresses, used), *body_lines]
        flags = self.kernels.flags(self.finish.body)
        return {
            "kind": "finish_matrices" if self._by_matrix else "finish",
            "states": states,
            "lines": lines or ["return  # nothing reads the sums yet"],
            "arguments": [name for name in _ARGUMENTS if name in used],
            "types": [*(state["type"] for state in states), *flags],
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

    def _lines_that_combine_sums(self, use: Use) -> list[str]:
        """Return the lines that combine the partial sums of the previous phase."""
        base, count_name, first_index = "sums", "sum_count", 0
        if isinstance(self.previous_phase, Finish):
            base, count_name = "part_sums", "part_sum_count"
            first_index = first_part(self.kernels.plan, self.previous_phase)
        lines = []
        for n, each in enumerate(self._sums_of_previous_phase(), first_index):
            function = "pick_largest" if each["is_maximum"] else "add_up"
            address = plus_multiple(use(base), n, use, count_name)
            lines.append(f"{each['name']} = {function}({address}, {use(count_name)})")
        return lines

    def _body_as_computed(self) -> Program:
        """Return the body, with what loops add up outside of branches: they ask no condition."""

        def is_added_up(stmt: Assign) -> bool:
            if not is_reduction(stmt.value):
                return False
            return self.kernels.plan.kind(_operand(stmt.value)).axes in LINE_AXES

        body = self.finish.body
        others = filter_assigns(body, lambda a: not is_added_up(a))
        return *others, *filter(is_added_up, assigns(body))

    def _known_numbers(self) -> list[str]:
        """Return the numbers that this kernel knows: combined from partial sums, or computed."""
        partial_targets = {a.target for a in partial_sums(self.kernels.plan, self.finish)}
        computed = [r for r in names_computed_by(self.finish) if self._is_number(r)]
        names = (variable(r.name) for r in computed if r not in partial_targets)
        return list(dict.fromkeys([*(s["name"] for s in self._sums_of_previous_phase()), *names]))

    def _is_number(self, ref: Ref) -> bool:
        return self.kernels.plan.kinds[ref].axes is Axes.NONE

    def _partial_stores(self, use: Use) -> list[str]:
        """Return the lines that store this program's partial sum of each sum over all matrices."""
        reductions = enumerate(
            partial_sums(self.kernels.plan, self.finish),
            first_part(self.kernels.plan, self.finish),
        )
        return [
            f"tl.store({plus_multiple(use('parts'), part, use, 'groups')} + matrix_group, "
            f"{variable(reduction.target.name)})"
            for part, reduction in reductions
        ]

    def _number_stores(self, names: Sequence[str], use: Use) -> list[str]:
        """Return the lines that store numbers for later kernels, in one program per tensor."""
        packed = self.kernels.packed
        lines = [
            f"tl.store({plus_offset(use('scalars'), packed.offset(n))}, {n})"
            for n in names
            if n in packed.finish_numbers
        ]
        for state in self._stored_scalars():
            address = f"tl.load({use('entry')} + {state['address']} * num_tensors)"
            pointer = f"{address}.to(tl.pointer_type({state['type']}))"
            lines.append(f"{state['list']} = {pointer}")
            lines.append(f"tl.store({state['list']}, {state['name']}.to({state['type']}))")
        if self._by_matrix and lines:
            return ["if matrix_group == 0:", *indented(lines)]
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


_TILE_SHAPES = {
    Axes.NONE: "()",
    Axes.MATRIX: "(DEPTH, 1)",
    Axes.ROW: "(DEPTH, HEIGHT)",
    Axes.COLUMN: "(DEPTH, WIDTH)",
}
_SIZE_NAMES = {Axes.ROW: ("height", "HEIGHT"), Axes.COLUMN: ("width", "WIDTH")}
"""Variable of a matrix's size along an axis, and constexpr of a tile's size."""


class FinishPrinter:
    """Printer of one `Finish`; it notes in `use` which addresses and sizes its lines read."""

    def __init__(
        self, plan: Plan, finish: Finish, packed: PackedScalars, slots: Slots, use: Use
    ) -> None:
        self._use = use
        self._plan, self._body, self._packed, self._slots = plan, finish.body, packed, slots
        self._printer = ExpressionPrinter(
            read_property, for_elements=False, read_condition=packed.packed_name
        )
        self._states = {s.symbol for s in plan.algorithm.factor_states()}
        self._optional_states = {s.symbol for s in plan.algorithm.factor_states() if s.when}
        self._stages: dict[Ref, int] = {}
        self._last_read: dict[Ref, int] = {}
        previous_stages: dict[Ref, int] | None = None
        while (
            self._stages != previous_stages
        ):  # both arms may assign a name, so repeat to a fixed point
            previous_stages = dict(self._stages)
            for stmt, conditions in with_conditions(self._body):
                self._find_stage(stmt, conditions)

    def values_read_by_later_loops(self) -> Iterator[Ref]:
        """Yield the rows and columns that a later loop of the same kernel reads."""
        for axis in LINE_AXES:
            for stage in range(self._last_stage + 1):
                read = self._small_values_read(self._statements_on(axis, stage))
                yield from (
                    r
                    for r in read
                    if self._stages.get(r, stage) < stage and self._axes(r) in LINE_AXES
                )

    def lines(self) -> list[str]:
        """Return the body of the kernel, stage by stage."""
        lines = [*self._loads(), *self._outside_loops(-1)]
        for stage in range(self._last_stage + 1):
            if stage:
                lines.append("tl.debug_barrier()  # the next loop reads stores of other threads")
            for axis in LINE_AXES:
                lines += self._loop(axis, stage)
            lines += self._outside_loops(stage)
        return lines

    @property
    def _last_stage(self) -> int:
        return max(self._stages.values(), default=-1)

    def _axes(self, ref: Ref) -> Axes:
        return self._plan.kinds[ref].axes

    def _loop_axes(self, stmt: Assign) -> Axes:
        """Return the axes of a statement's loop. A reduction is in the loop of its operand."""
        if is_reduction(stmt.value):
            return self._plan.kind(_operand(stmt.value)).axes
        return self._axes(stmt.target)

    def _find_stage(self, stmt: Assign, conditions: tuple[Expr, ...]) -> None:
        """Compute a statement's stage from the stages of the values that it reads.

        A state is not written before the last read of its old value. A reduction is complete at the
        end of its loop.
        """
        in_loop = self._loop_axes(stmt) in LINE_AXES
        read = [r for e in (stmt.value, *conditions) for r in reads(e)]
        stage = 0 if in_loop else -1
        for ref in (ref for ref in read if ref in self._stages):
            is_after_loops = in_loop and self._axes(ref) not in LINE_AXES
            stage = max(stage, self._stages[ref] + 1 if is_after_loops else self._stages[ref])
        last_read = self._last_read.get(Ref(stmt.target.name), -1) if stmt.target.version else -1
        stage = max(stage, last_read, self._stages.get(stmt.target, -1))
        self._stages[stmt.target] = stage
        stage_after_read = stage + 1 if is_reduction(stmt.value) else stage
        for ref in read:
            self._last_read[ref] = max(stage_after_read, self._last_read.get(ref, -1))

    def _statements_on(self, axis: Axes, stage: int) -> Program:
        """Return a stage's statements on rows, or on columns."""
        return filter_assigns(
            self._body, lambda a: self._loop_axes(a) is axis and self._stages[a.target] == stage
        )

    def _outside_loops(self, stage: int) -> list[str]:
        """Print a stage's statements on numbers of the tensor, or of the program's matrices."""
        body = filter_assigns(
            self._body,
            lambda a: self._loop_axes(a) not in LINE_AXES and self._stages[a.target] == stage,
        )
        targets = dict.fromkeys(a.target for a in assigns(body))
        return [*self._zeros(body, stage), *self._statements(body), *self._matrix_stores(targets)]

    def _loads(self) -> list[str]:
        """Load the numbers of matrices that an earlier kernel has stored."""
        return [
            f"{variable(ref.name)} = tl.load({self._matrix_address(ref)}, {self._use('in_batch')}, "
            "0.0).to(tl.float64)"
            for ref in self._small_values_read(self._body)
            if self._axes(ref) is Axes.MATRIX
        ]

    def _matrix_stores(self, computed: Iterable[Ref]) -> list[str]:
        """Store the computed numbers of matrices that a later kernel reads."""
        return [
            f"tl.store({self._matrix_address(ref)}, {variable(ref.name)}, {self._use('in_batch')})"
            for ref in computed
            if self._axes(ref) is Axes.MATRIX and self._slots.holds(ref, Axes.MATRIX)
        ]

    def _matrix_address(self, ref: Ref) -> str:
        address = self._slots.address(ref, Axes.MATRIX, self._use)
        return f"{address} + {self._use('matrices')}"

    def _loop(self, axis: Axes, stage: int) -> list[str]:
        """Return a stage's loop over rows or over columns, tile by tile."""
        body = self._statements_on(axis, stage)
        if not body:
            return []
        size, tile = _SIZE_NAMES[axis]
        matrices = self._use("remaining_matrices")
        self._use(size)
        reductions = {a.target: a.value for a in assigns(body) if is_reduction(a.value)}
        other_statements = filter_assigns(body, lambda a: not is_reduction(a.value))
        loaded = [r for r in self._small_values_read(body) if self._is_loaded(r, stage)]
        inner = [
            f"lanes = first + lines({size}, DEPTH, {tile})",
            f"mask = lines_inside({matrices}, {size} - first, DEPTH, {tile})",
            *(self._load(ref, axis) for ref in loaded),
            *self._barrier_after(loaded, other_statements),
            *self._zeros(other_statements, stage),
            *self._statements(other_statements),
            *self._stores(other_statements, axis),
            *(self._accumulate(ref, value) for ref, value in reductions.items()),
        ]
        zeros = f"tl.zeros((DEPTH, {tile}), tl.float64)"
        return [
            *(f"{variable(ref.name)} = {zeros}" for ref in reductions),
            f"for first in range(0, {size}, {tile}):",
            *indented(inner),
            *(self._reduce(ref, value) for ref, value in reductions.items()),
            *self._matrix_stores(reductions),
        ]

    def _small_values_read(self, body: Program) -> list[Ref]:
        """Return the rows, columns and numbers of matrices that a body reads but does not compute.

        A state that some path does not assign keeps its value, so the body reads it, too.
        """
        targets = {a.target for a in assigns(body)}
        read = [
            ref
            for stmt, conditions in with_conditions(body)
            for expr in (*conditions, stmt.value)
            for ref in reads(expr)
        ]
        assigned = always_assigned(body)
        read += [Ref(r.name) for r in targets if r.name in self._states and r.name not in assigned]
        unknown = (r for r in dict.fromkeys(read) if r not in targets)
        return [r for r in unknown if self._axes(r) is not Axes.NONE]

    def _is_loaded(self, ref: Ref, stage: int) -> bool:
        return self._axes(ref) in LINE_AXES and self._stages.get(ref, -1) < stage

    def _barrier_after(self, loaded: Iterable[Ref], body: Program) -> list[str]:
        """Return a barrier if a loop stores states where it has loaded them.

        A tile may have fewer elements than a program has threads. Then several threads load an
        element, and one of them stores it: the others must have loaded the old value before.
        """
        stored = {a.target.name for a in assigns(body)}
        if any(self._is_old_state(ref) and ref.name in stored for ref in loaded):
            return ["tl.debug_barrier()  # all threads have loaded before one of them stores"]
        return []

    def _is_old_state(self, ref: Ref) -> bool:
        return ref.name in self._states and ref not in self._stages

    def _load(self, ref: Ref, axis: Axes) -> str:
        is_old_state = self._is_old_state(ref)
        if is_old_state:
            address, mask = self._use(variable(plural(ref.name))), self._state_mask(ref)
        else:
            address, mask = self._slots.address(ref, axis, self._use), "mask"
        return f"{variable(ref.name)} = tl.load({address} + lanes, {mask}, 0.0).to(tl.float64)"

    def _state_mask(self, ref: Ref) -> str:
        """Return the mask of a state's lanes, which is false if the state does not exist."""
        if ref.name not in self._optional_states:
            return "mask"
        return f"mask & {self._use(existence_variable(variable(plural(ref.name))))}"

    def _stores(self, body: Program, axis: Axes) -> list[str]:
        """Store the rows or columns that a loop computes, into states and into slots."""
        lines = []
        for ref in dict.fromkeys(a.target for a in assigns(body)):
            name = variable(ref.name)
            if ref.name in self._states:
                value = f"{name}.to({ref.name.upper()}_T)"
                pointers, mask = self._use(variable(plural(ref.name))), self._state_mask(ref)
                lines.append(f"tl.store({pointers} + lanes, {value}, {mask})")
            if self._slots.holds(ref, axis):
                address = self._slots.address(ref, axis, self._use)
                lines.append(f"tl.store({address} + lanes, {name}, mask)")
        return lines

    def _zeros(self, body: Program, stage: int) -> list[str]:
        """Initialize names that a branch may leave unassigned."""
        assigned_names = {r.name for r, its_stage in self._stages.items() if its_stage < stage}
        read = (r for e in expressions(self._body) for r in reads(e))
        assigned_names |= (
            {r.name for r in read if r not in self._stages} | always_assigned(body) | self._states
        )
        unassigned = {
            a.target: a.value for a in assigns(body) if a.target.name not in assigned_names
        }
        return [
            f"{variable(ref.name)} = "
            f"tl.zeros({_TILE_SHAPES[self._axes(ref)]}, tl.{_triton_dtype(value)})"
            for ref, value in unassigned.items()
        ]

    def _statements(self, body: Program) -> list[str]:
        return print_statements(body, self._packed, self._statement)

    def _reduce(self, target: Ref, value: Expr) -> str:
        """Reduce a loop's accumulator to a number per matrix, or to this program's partial sum."""
        name = variable(target.name)
        if not self._axes(target):
            template = "tl.reduce({}, None, larger)" if is_maximum(value) else "tl.sum({})"
            return f"{name} = {template.format(name)}"
        template = "tl.reduce({}, 1, larger)" if is_maximum(value) else "tl.sum({}, axis=1)"
        return f"{name} = {template.format(name)}[:, None]"

    def _statement(self, stmt: Assign) -> str:
        """Print an assignment; a reduction reduces the numbers of this program's matrices."""
        name = variable(stmt.target.name)
        if not is_reduction(stmt.value):
            return f"{name} = {self._printer.argument(stmt.value)}"
        function = "largest" if is_maximum(stmt.value) else "total"
        operand = self._printer(_operand(stmt.value))
        return f"{name} = {function}({operand}, {self._use('in_batch')})"

    def _accumulate(self, target: Ref, value: Expr) -> str:
        """Add one tile of a loop to a reduction's accumulator, element by element."""
        name, operand = variable(target.name), self._printer(_operand(value))
        if is_maximum(value):
            return f"{name} = maximum({name}, tl.abs(masked({operand}, mask)))"
        return f"{name} += masked({operand}, mask)"


def _triton_dtype(value: Expr) -> str:
    """Return the Triton dtype of a value: int1 for conditions, else float64."""
    op = OPS.get(value.op) if isinstance(value, Call) else None
    return "int1" if op and op.category in ("comparison", "logic") else "float64"


def _operand(value: Expr) -> Expr:
    assert isinstance(value, Call)
    return value.args[0]

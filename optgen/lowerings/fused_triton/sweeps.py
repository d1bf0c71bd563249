"""Describe the kernels of sweeps, and the calls of matrix ops, for the templates.

The body of a sweep has loads, statements below the lines of the spec, and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optgen.contract.quantization import CODE_MAPS
from optgen.contract.states import Condition
from optgen.ir.algorithm import State
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Program,
    Ref,
    always_assigned,
    assigns,
    expressions,
    refs,
)
from optgen.ir.ops import OPS
from optgen.ir.plan import (
    MatrixCall,
    Plan,
    Stream,
    Sweep,
    WideCall,
    is_maximum,
    is_reduction,
    read_before_assigned,
    reads,
)
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.fused_triton.address_printer import (
    Use,
    UsedNames,
    indented,
    needed_lines,
    plus_offset,
    tile_addresses,
    tile_stores,
)
from optgen.lowerings.fused_triton.expression_printer import ExpressionPrinter, variable
from optgen.lowerings.fused_triton.prologue import PackedScalars, flag_condition
from optgen.lowerings.fused_triton.workspace_slots import (
    LINE_AXES,
    SMALL_VALUE_AXES,
    Slots,
    names_computed_by,
    names_read_by,
    reductions_to,
)
from optgen.lowerings.python.expression_printer import PythonPrinter
from optgen.lowerings.python.literals import Quote, comment, literal, not_shown, shown_after
from optgen.passes.prepare_for_kernels import has_flat_sweeps

Context = dict[str, Any]
_BROADCAST = {Axes.ROW: "[:, :, None]", Axes.COLUMN: "[:, None, :]", Axes.MATRIX: "[:, None, None]"}
WORKSPACE_ARGUMENTS = ("shapes", "values", "partials")
"""Arguments of a sweep that lie in the workspace."""
_SWEEP_ARGUMENTS = (
    *("table", "tensor_of_block", "shapes", "scalars", "values", "partials"),
    *("loss_scale", "found_inf"),
)
ARGUMENTS = {
    "table": "bucket.table",
    "tensor_of_block": "bucket.tensor_of_block",
    "loss_scale": "bucket.loss_scale",
    "found_inf": "bucket.found_inf",
    "shapes": "work.shapes",
    "scalars": "bucket.scalars",
    "values": "work.values",
    "partials": "work.partials",
}
"""Launch expression of each argument of a sweep."""
FINISH_ARGUMENTS = ARGUMENTS | {
    name: f"whole.{name}" for name in ("arrivals", "shapes", "values", "partials")
}
"""Launch expression of each argument of a finish, which sees whole matrices even beside shards."""
_MASK = {Axes.ROW: "in_rows", Axes.COLUMN: "in_columns", Axes.MATRIX: "in_batch"}


@dataclass(frozen=True)
class Kernels:
    """Printer of the kernels and calls of a plan's phases.

    `table_rows` has the row of the bucket's table for each name: `stream_count` streams, scalar
    types, fresh flags, and the operands and results of matrix ops (`local_names`). `scalar_types`
    names the types of the step and of scalar states. With `in_phases`, scalars are in float64.
    """

    plan: Plan
    table_rows: Mapping[str, int]
    stream_count: int
    scalar_types: Sequence[str]
    local_names: Sequence[str]
    packed: PackedScalars
    slots: Slots
    by_matrix: bool
    in_phases: bool

    def sweep(self, sweep: Sweep, unscales: bool) -> Context:
        """Return the template's variables for a sweep's kernel and its tile function."""
        used = UsedNames()
        streams, small_values = used_streams(sweep), list(self._small_values_read(sweep, used))
        sums, row_sums, column_sums = (self.reductions(sweep, a) for a in (Axes.NONE, *LINE_AXES))
        stream_contexts = [
            self.stream_context(s.name) | codes_context(s, self._has_codes) for s in streams
        ]
        effects = {"update": any(s.stored for s in streams), "reduce": bool(sweep.reductions)}
        numbers = print_numbers(self.packed, sweep.body, ".to(dtype)" if self.in_phases else "")
        context: Context = {
            "kind": "sweep",
            "verb": " and ".join(verb for verb, holds in effects.items() if holds).capitalize(),
            "reads_scalars": bool(numbers),
            "stored_locals": [s.name for s in streams if s.role == "local" and s.stored],
            "streams": stream_contexts,
            "launch_types": self._launch_types(stream_contexts),
            "small_values": small_values,
            "unscales": unscales,
            "loads": [
                *print_loads(
                    [s for s in streams if s.role != "local" or not s.stored],
                    sweep.body,
                    self.packed,
                    self._has_codes,
                ),
                *(
                    f"{s['name']} = tl.load({s['list']}, {s['mask']}){s['broadcast']}"
                    for s in small_values
                ),
                *numbers,
            ],
            "body": [*print_zeros(sweep.body), *print_sweep(sweep.body, self.packed)],
            "stores": print_stores(streams, self._has_codes),
            "sums": sums,
            "row_sums": row_sums,
            "column_sums": column_sums,
        }
        tile = self._tile_lines(context, self.first_slots(sweep), used)
        flags = self.flags(sweep.body, streams)
        return context | tile | {"flag_values": flags}

    @property
    def _has_codes(self) -> bool:
        """Tell whether sweeps read and write codes."""
        return self.plan.algorithm.has_codes and has_flat_sweeps(self.plan)

    def _launch_types(self, streams: Sequence[Context]) -> str:
        """Return the launch expression of the types of a sweep's streams."""
        types = [s["launch_type"] for s in streams]
        is_all = types == [f"bucket.types[{index}]" for index in range(self.stream_count)]
        return "*bucket.types," if is_all else "".join(f"{each}, " for each in types)

    def first_slots(self, sweep: Sweep) -> Mapping[Axes, int]:
        """Return the first slot of a sweep's row sums, and of its column sums."""
        return {
            axes: self.slots.first_slot(
                (a.target for a in reductions_to(self.plan, sweep, axes)), axes
            )
            for axes in LINE_AXES
        }

    def flags(self, body: Program, streams: Sequence[Stream] = ()) -> dict[str, str]:
        """Return the constexpr flags of a kernel's branches and streams, with launch values."""
        conditions = [*self.packed.constexpr_conditions(body), *map(presence, streams)]
        used = {condition.name for condition in conditions if condition}
        all_flags = flags_of([s for sweep in self.plan.sweeps for s in sweep.streams])
        return {flag: value for flag, value in all_flags.items() if flag in used}

    def _tile_lines(
        self, context: Context, first_slots: Mapping[Axes, int], used: UsedNames
    ) -> Context:
        """Return the lines of a sweep's kernel before and after the call of its tile function."""
        sums, row_sums, column_sums = (
            [s["name"] for s in context[key]] for key in ("sums", "row_sums", "column_sums")
        )
        counts = self.slots.counts
        store_lines = tile_stores(sums, row_sums, column_sums, counts, first_slots, used)
        pointers = [f"{s['list']} = {s['address']}" for s in context["small_values"]]
        addresses = needed_lines(tile_addresses(counts), used)
        is_needed = {
            "shapes": self.by_matrix or bool(store_lines),
            "scalars": context["reads_scalars"],
            "values": "values" in used,
            "partials": bool(store_lines),
            "loss_scale": context["unscales"],
            "found_inf": not (self.plan.algorithm.is_function and self.plan.algorithm.elementwise),
        }
        return {
            "partials": store_lines,
            "address_lines": [*addresses, *pointers],
            "needs_columns": "first_column" in used,
            "arguments": [n for n in _SWEEP_ARGUMENTS if is_needed.get(n, True)],
        }

    def matrix_call(self, call: MatrixCall) -> Context:
        """Return the template's variables for a call of a matrix op."""
        operand, *rest = call.args[: OPS[call.op].arity]
        assert isinstance(operand, Ref)
        arguments = [*map(_group_argument, rest), *map(literal, call.options)]
        return {
            "kind": "call",
            "quote": list(map(comment, call.quote)),
            "op": call.op,
            "source": operand.name,
            "target": call.target.name,
            "op_arguments": "".join(f"{argument}, " for argument in arguments),
        }

    def wide_call(self, call: WideCall) -> Context:
        """Return the template's variables for a reduction over parameters.

        The result is not stored if only other plans read it.
        """
        target, operand = variable(call.target.name), call.args[0]
        assert isinstance(operand, Ref)
        is_read = target in self.packed.finish_numbers
        return {
            "kind": "wide",
            "quote": list(map(comment, call.quote)),
            "op": call.op,
            "source": self.packed.offset(variable(operand.name)),
            "stores": f"bucket.scalars[:, {self.packed.offset(target)}] = " if is_read else "",
            "condition": "" if call.condition is None else self._host_text(call.condition),
        }

    def _host_text(self, condition: Expr) -> str:
        """Return a condition on hyperparameters as Python text for the host."""
        names = {h.name: f'bucket.group["{h.name}"]' for h in self.plan.algorithm.hypers}
        return PythonPrinter(names, {}).text(condition)

    def reductions(self, sweep: Sweep, axes: Axes) -> list[Context]:
        """Return the reductions of a sweep whose results have these axes, maxima last."""
        return [reduction_context(a) for a in reductions_to(self.plan, sweep, axes)]

    def stream_context(self, name: str) -> Context:
        """Return the kernel's names for a stream, and its row in the table."""
        state = self.plan.algorithm.state(name)
        is_local = name in self.local_names
        if state is not None and state.shape == "scalar":
            scalar_type = f"{name.upper()}_T"
            index = self.table_rows[scalar_type]
            launch_type = f"bucket.scalar_types[{self.scalar_types.index(scalar_type)}]"
        else:
            index = self.table_rows[name]
            launch_type = f'bucket.local_type("{name}")' if is_local else f"bucket.types[{index}]"
        return {
            "list": variable(plural(name)),
            "type": f"{name.upper()}_T",
            "launch_type": launch_type,
            "address": f"(STREAMS + {index})" if index else "STREAMS",
        }

    def _small_values_read(self, sweep: Sweep, use: Use) -> Iterator[Context]:
        """Yield the rows, columns and numbers of matrices that a sweep reads, with addresses."""
        computed = names_computed_by(sweep)
        for ref in dict.fromkeys(names_read_by(sweep)):
            axes = self.plan.kinds[ref].axes
            if axes in SMALL_VALUE_AXES and ref not in computed:
                yield {
                    "name": variable(ref.name),
                    "list": variable(plural(ref.name)),
                    "axes": axes,
                    "mask": use(_MASK[axes]),
                    "broadcast": _BROADCAST[axes],
                    "address": self.slots.address(ref, axes, use),
                }


def reduction_context(stmt: Assign) -> Context:
    """Return the template's variables for a reduction."""
    return {
        "name": variable(stmt.target.name),
        "chunk_sum": f"more_{stmt.target.name}",
        "is_maximum": is_maximum(stmt.value),
    }


def _group_argument(arg: Expr) -> str:
    """Return a matrix op's argument as Python text, which reads the param group on the host."""
    match arg:
        case Ref(name):
            return f'group["{name}"]'
        case Const(value):
            return repr(value)
    raise NotImplementedError("fused Triton: an argument of a matrix op must be a name or number")


def used_streams(sweep: Sweep) -> list[Stream]:
    """Return the streams that a sweep reads or stores.

    A name that some path does not assign keeps its value, so the sweep reads it, too.
    """
    assigned = {a.target for a in assigns(sweep.body)}
    read = {r.name for e in expressions(sweep.body) for r in reads(e) if r not in assigned}
    read |= {ref.name for ref in assigned} - always_assigned(sweep.body)
    read |= read_before_assigned(sweep.body).keys()
    return [s for s in sweep.streams if s.stored or s.name in read or s.role == "local"]


REDUCTIONS = {
    "sum": "total({}, mask)",
    "max_abs": "largest({}, mask)",
    "row_sum": "row_total({}, mask)",
    "col_sum": "column_total({}, mask)",
    "row_max_abs": "row_largest({}, mask)",
    "col_max_abs": "column_largest({}, mask)",
}
"""Triton calls that reduce a tile's valid elements, in float64."""


def print_loads(
    streams: Sequence[Stream], body: Program, packed: PackedScalars, may_hold_codes: bool
) -> list[str]:
    """Return the lines that load a tile's streams, for a body that reads them.

    With `may_hold_codes`, a stream may hold codes. Each tile of such a sweep has whole
    blocks of a flat tensor.
    """
    lines: list[str] = []
    read_if_absent = _read_if_absent(body, packed, streams, frozenset())
    for stream in streams:
        name, pointers = variable(stream.name), variable(plural(stream.name))
        value = f"tl.load({pointers} + lanes, mask)"
        if may_hold_codes and (state := coded_state(stream)):
            scales, codes = scales_pointer(stream), _code_format(state)
            value = f"load_coded({pointers}, {scales}, lanes, mask, {codes})"
        lines += _if_present(stream, f"{name} = {value}.to(dtype)")
        if stream.name in read_if_absent:
            zeros = f"{name} = (lanes * 0).to(dtype)  # the branch that reads it is not taken"
            lines += ["else:", *indented([zeros])]
    return lines


def _read_if_absent(
    body: Program, packed: PackedScalars, streams: Sequence[Stream], known: frozenset[Condition]
) -> set[str]:
    """Return the names of streams that a body reads where they may not exist.

    Triton compiles a branch whose condition it does not know, even if the branch is never taken.
    `known` has the conditions that Triton knows there.
    """
    absent = {s.name for s in streams if s.when and presence(s) not in known}
    found: set[str] = set()
    for stmt in body:
        if isinstance(stmt, Assign):
            found |= absent & {ref.name for ref in refs(stmt.value)}
            continue
        condition = packed.constexpr_condition(stmt.condition)
        opposite = condition and condition.negated
        for arm, arm_condition in ((stmt.then, condition), (stmt.orelse, opposite)):
            in_arm = known | ({arm_condition} if arm_condition else set())
            found |= _read_if_absent(arm, packed, streams, in_arm)
    return found


def scales_pointer(stream: Stream) -> str:
    """Return the name of the pointer to a quantized stream's scales."""
    return f"{stream.name}_scales"


def codes_context(stream: Stream, may_hold_codes: bool) -> Context:
    """Return a stream's scales and format, "" without codes, and where a block starts."""
    state = coded_state(stream) if may_hold_codes else None
    is_packed = state is not None and CODE_MAPS[state.map].bits < 8
    return {
        "start": f"packed_index(start, {stream.name.upper()}_T)" if is_packed else "start",
        "scales": scales_pointer(stream) if state else "",
        "codes": _code_format(state) if state else "",
    }


def coded_state(stream: Stream) -> State | None:
    """Return the state of a stream that may hold codes; None for any other stream."""
    state = stream.state
    return state if state is not None and state.is_quantized else None


def _code_format(state: State) -> str:
    """Return a state's block size and its map, as arguments in Triton."""
    return f'{state.block}, "{state.map}"'


def print_numbers(
    packed: PackedScalars,
    body: Program,
    suffix: str = "",
    known_names: Container[str] = (),
    use: Use = str,
) -> list[str]:
    """Return the lines that load the packed scalars of a body, except the `known_names`.

    `suffix` is appended to each load, for example a conversion to another dtype.
    """
    return [
        f"{name} = tl.load({plus_offset(use('scalars'), number)}){suffix}"
        for name, number in packed.offsets(body).items()
        if name not in known_names
    ]


def print_stores(streams: Sequence[Stream], may_hold_codes: bool) -> list[str]:
    """Return the lines that store the streams that a sweep changes, each in its own dtype.

    `may_hold_codes` has the same meaning as in `print_loads`.
    """
    lines: list[str] = []
    for stream in streams:
        if stream.stored:
            name = variable(stream.name)
            pointers = variable(plural(stream.name))
            value = f"{name}.to({pointers}.dtype.element_ty)"
            line = f"tl.store({pointers} + lanes, {value}, mask)"
            if may_hold_codes and (state := coded_state(stream)):
                scales, codes = scales_pointer(stream), _code_format(state)
                line = f"store_coded({pointers}, {scales}, {name}, lanes, mask, {codes})"
            lines += _if_present(stream, line)
    return lines


def presence(stream: Stream) -> Condition | None:
    """Return the constexpr condition under which a stream exists; None if it always exists."""
    return flag_condition(stream.condition) if stream.condition else None


def flags_of(streams: Sequence[Stream]) -> dict[str, str]:
    """Return every constexpr flag, with the launch expression of its value."""
    flags = {}
    for stream in streams:
        if stream.state and (flag := presence(stream)):
            exists = f'bucket.has("{stream.state.key}")'
            flags[flag.name] = exists if flag.holds else f"not {exists}"
    return flags


def _if_present(stream: Stream, line: str) -> list[str]:
    condition = presence(stream)
    return [f"if {condition}:", *indented([line])] if condition else [line]


def print_sweep(body: Program, packed: PackedScalars) -> list[str]:
    """Return the lines that compute one tile."""
    printer = ExpressionPrinter(
        lambda expr: None, for_elements=True, read_condition=packed.packed_name
    )
    return print_statements(
        body, packed, lambda a: f"{variable(a.target.name)} = {_value(a.value, printer)}"
    )


def print_statements(
    body: Program, packed: PackedScalars, print_assignment: Callable[[Assign], str]
) -> list[str]:
    """Return the lines of a program, each below its lines of the spec."""

    def arm(head: str, statements: Program) -> list[str]:
        inner = print_statements(statements, packed, print_assignment)
        return [head, *indented(inner or ["pass"])]

    lines: list[str] = []
    shown: Quote = ()
    for stmt in body:
        if isinstance(stmt, Assign):
            lines += [*map(comment, not_shown(stmt.quote, shown)), print_assignment(stmt)]
            shown = shown_after(stmt.quote, shown)
            continue
        shown = ()
        keyword = "if"
        rest: Program = (stmt,)
        while len(rest) == 1 and isinstance(branch := rest[0], If):
            lines += arm(f"{keyword} {packed.branch_condition(branch.condition)}:", branch.then)
            keyword, rest = "elif", branch.orelse
        lines += arm("else:", rest) if rest else []
    return lines


def print_zeros(body: Program) -> list[str]:
    """Return the lines that initialize the sums that a branch may leave unassigned."""
    branches = [stmt for stmt in body if isinstance(stmt, If)]
    sums = {a.target.name: a.value for a in assigns(tuple(branches)) if is_reduction(a.value)}
    return [
        f"{variable(name)} = {REDUCTIONS[value.op].format('lanes * 0')}"
        for name, value in sums.items()
        if isinstance(value, Call)
    ]


def _value(value: Expr, printer: ExpressionPrinter) -> str:
    if is_reduction(value) and isinstance(value, Call):
        return REDUCTIONS[value.op].format(printer.argument(value.args[0]))
    return printer(value)

"""The body of a sweep, in registers: one statement a line, the spec's own above it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from optgen.ir.generated_names import plural
from optgen.ir.nodes import Assign, Call, Expr, If, Program, assigns
from optgen.ir.plan import Stream, is_reduction
from optgen.lowerings.fused_triton.expressions import Printer, constant, variable
from optgen.lowerings.fused_triton.row import Row
from optgen.lowerings.python.literals import comment

_INDENT = "    "
REDUCTIONS = {
    "sum": "total({}, mask)",
    "max_abs": "largest({}, mask)",
    "row_sum": "row_total({}, mask)",
    "col_sum": "column_total({}, mask)",
}
"""How a tile sums: what of it there is, in float64."""


def print_loads(streams: Sequence[Stream]) -> list[str]:
    """The lines that bring a tile's streams into registers."""
    lines: list[str] = []
    for stream in streams:
        name = variable(stream.name)
        lines += _if_present(
            stream, f"{name} = tl.load({variable(plural(stream.name))} + lanes, mask).to(dtype)"
        )
    return lines


def print_numbers(
    row: Row, body: Program, suffix: str = "", known: Container[str] = ()
) -> list[str]:
    """The lines that read the numbers of a body's tensor, except those that are `known`.

    A `suffix` makes them another type.
    """
    return [
        f"{name} = tl.load({offset('scalars', place)}){suffix}"
        for name, place in row.places(body).items()
        if name not in known
    ]


def offset(pointer: str, place: int) -> str:
    """An address so many numbers behind a pointer."""
    return f"{pointer} + {place}" if place else pointer


def print_stores(streams: Sequence[Stream]) -> list[str]:
    """The lines that write back what a sweep changes, each stream in its own type."""
    lines: list[str] = []
    for stream in streams:
        if stream.stored:
            name = variable(stream.name)
            place = variable(plural(stream.name))
            kept = f"{name}.to({place}.dtype.element_ty)"
            lines += _if_present(stream, f"tl.store({place} + lanes, {kept}, mask)")
    return lines


def presence(stream: Stream) -> str:
    """The constexpr condition on which a stream exists; empty: always."""
    when = stream.when
    if when is None:
        return ""
    flag = constant(when.removeprefix("not "))
    return f"not {flag}" if when.startswith("not ") else flag


def flags_of(streams: Sequence[Stream]) -> dict[str, str]:
    """Every constexpr flag, and how a bucket tells its value."""
    flags = {}
    for stream in streams:
        condition = presence(stream)
        if stream.state and condition:
            negated = "not " if condition.startswith("not ") else ""
            flags[condition.removeprefix("not ")] = f'{negated}bucket.has("{stream.state.key}")'
    return flags


def _if_present(stream: Stream, line: str) -> list[str]:
    condition = presence(stream)
    return [f"if {condition}:", _INDENT + line] if condition else [line]


def print_sweep(body: Program, row: Row) -> list[str]:
    """The lines of a kernel that update one tile."""
    printer = Printer(lambda expr: None, tensors=True, ask=row.answer)
    lines: list[str] = []
    for stmt in body:
        if isinstance(stmt, Assign):
            lines += map(comment, stmt.quote)
            lines.append(f"{variable(stmt.target.name)} = {_value(stmt.value, printer)}")
        else:
            lines += _branch(stmt, row, "if")
    return lines


def print_zeros(body: Program) -> list[str]:
    """The lines that give sums a value which stand in a branch: it may not be taken."""
    branches = [stmt for stmt in body if isinstance(stmt, If)]
    sums = {a.target.name: a.value for a in assigns(tuple(branches)) if is_reduction(a.value)}
    return [
        f"{variable(name)} = {REDUCTIONS[value.op].format('lanes * 0')}"
        for name, value in sums.items()
        if isinstance(value, Call)
    ]


def _value(value: Expr, printer: Printer) -> str:
    if is_reduction(value) and isinstance(value, Call):
        return REDUCTIONS[value.op].format(printer.argument(value.args[0]))
    return printer(value)


def _branch(stmt: If, row: Row, word: str) -> list[str]:
    lines = [f"{word} {row.condition(stmt.condition)}:"]
    lines += [_INDENT + line for line in print_sweep(stmt.then, row) or ["pass"]]
    match stmt.orelse:
        case ():
            return lines
        case (If() as other,):
            return lines + _branch(other, row, "elif")
    return [*lines, "else:", *(_INDENT + line for line in print_sweep(stmt.orelse, row))]

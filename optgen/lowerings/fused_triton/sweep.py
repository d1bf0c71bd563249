"""The body of a sweep, in registers: one statement a line, the spec's own above it."""

from __future__ import annotations

from collections.abc import Sequence

from optgen.ir.nodes import Assign, If, Program
from optgen.ir.plan import Stream
from optgen.ir.variables import plural
from optgen.lowerings.fused_triton.expressions import Printer, constant, variable
from optgen.lowerings.fused_triton.row import Row

_INDENT = "    "


def print_loads(streams: Sequence[Stream], row: Row) -> list[str]:
    """The lines that bring a tile into registers: its streams, then the numbers of its tensor."""
    lines: list[str] = []
    for stream in streams:
        name = variable(stream.name)
        lines += _if_present(
            stream, f"{name} = tl.load({variable(plural(stream.name))} + lanes, mask).to(dtype)"
        )
    for place, name in enumerate(row.entries):
        lines.append(f"{name} = tl.load(scalars{f' + {place}' if place else ''})")
    return lines


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


def _if_present(stream: Stream, line: str) -> list[str]:
    condition = presence(stream)
    return [f"if {condition}:", _INDENT + line] if condition else [line]


def print_sweep(body: Program, row: Row) -> list[str]:
    """The lines of a kernel that update one tile."""
    printer = Printer(lambda expr: None, tensors=True)
    lines: list[str] = []
    for stmt in body:
        if isinstance(stmt, Assign):
            lines += [f"# {line}" for line in stmt.quote]
            lines.append(f"{variable(stmt.target.name)} = {printer(stmt.value)}")
        else:
            lines += _branch(stmt, row, "if")
    return lines


def _branch(stmt: If, row: Row, word: str) -> list[str]:
    lines = [f"{word} {row.condition(stmt.condition)}:"]
    lines += [_INDENT + line for line in print_sweep(stmt.then, row) or ["pass"]]
    match stmt.orelse:
        case ():
            return lines
        case (If() as other,):
            return lines + _branch(other, row, "elif")
    return [*lines, "else:", *(_INDENT + line for line in print_sweep(stmt.orelse, row))]

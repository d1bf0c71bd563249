"""The body of a sweep, in registers: one statement a line, the spec's own above it."""

from __future__ import annotations

from optgen.ir.nodes import Assign, If, Program
from optgen.lowerings.triton_expressions import Printer, variable
from optgen.lowerings.triton_row import Row

_INDENT = "    "


def print_sweep(body: Program, row: Row) -> list[str]:
    """The lines of a kernel that update one tile."""
    printer = Printer(lambda expr: None, tensors=True)
    lines: list[str] = []
    for stmt in body:
        if isinstance(stmt, Assign):
            lines += [f"# {line}" for line in stmt.quote]
            lines.append(f"{variable(stmt.target)} = {printer(stmt.value)}")
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

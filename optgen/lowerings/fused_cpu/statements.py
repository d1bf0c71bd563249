"""Print programs as C++ statements. All versions of a name share one variable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    always_assigned,
    assigns,
    names_read,
    only_factor,
)
from optgen.ir.ops import OPS
from optgen.lowerings.fused_cpu.expression_printer import variable
from optgen.lowerings.fused_cpu.line_layout import comment, indented, wrapped_statement


@dataclass
class Statements:
    """Printer of the statements of one function, each below the line of the spec it comes from.

    `print_value` prints the right-hand side of an assignment. `print_if` prints an `if` with its
    condition. A name that is not yet declared gets a declaration in the innermost block that
    contains all statements that read it.
    """

    type: str
    print_value: Callable[[Assign], str]
    print_if: Callable[[Expr], str]
    program: Program
    declared_names: frozenset[str]
    read_later: frozenset[str] = frozenset()  # names that are read after the program
    masks: frozenset[str] = frozenset()  # truth values per element, assigned once

    def lines(self, column: int) -> list[str]:
        """Return the lines of the whole program, to be indented to `column`."""
        return self._block(self.program, set(self.declared_names), self.read_later, column)

    def _block(
        self, program: Program, declared: set[str], read_later: frozenset[str], column: int
    ) -> list[str]:
        lines: list[str] = []
        assignment_counts = Counter(a.target.name for a in assigns(program))
        for position, stmt in enumerate(program):
            later = read_later | names_read(program[position + 1 :])
            if isinstance(stmt, If):
                for name in _assigned_names(stmt):
                    if name in later and name not in declared:
                        declared.add(name)
                        value = "" if name in always_assigned((stmt,)) else " = 0"
                        lines.append(f"{self.type} {variable(name)}{value};")
                lines += self._if(stmt, declared, later, column)
            else:
                if position == 0 or program[position - 1].quote != stmt.quote:
                    lines += map(comment, stmt.quote)
                name = stmt.target.name
                declaration = (
                    "" if name in declared else self._declaration(name, assignment_counts[name])
                )
                lines += wrapped_statement(
                    f"{declaration}{variable(name)} = {self.print_value(stmt)};", column
                )
                declared.add(name)
        return lines

    def _declaration(self, name: str, assignment_count: int) -> str:
        if assignment_count > 1:
            return f"{self.type} "
        return f"const {'auto' if name in self.masks else self.type} "

    def _if(self, stmt: If, declared: set[str], later: frozenset[str], column: int) -> list[str]:
        lines = [f"{self.print_if(stmt.condition)} {{"]
        lines += indented(self._block(stmt.then, set(declared), later, column + 4))
        match stmt.orelse:
            case ():
                return [*lines, "}"]
            case (If() as other,):
                first, *rest = self._if(other, declared, later, column)
                return [*lines, f"}} else {first}", *rest]
        arm = indented(self._block(stmt.orelse, set(declared), later, column + 4))
        return [*lines, "} else {", *arm, "}"]


def masks(program: Program) -> frozenset[str]:
    """Return the names that are assigned once, to a truth value per element."""
    counts = Counter(a.target.name for a in assigns(program))
    truths = (a.target.name for a in assigns(program) if _is_truth(a.value))
    return frozenset(name for name in truths if counts[name] == 1)


def _is_truth(value: Expr) -> bool:
    value = only_factor(value)
    return isinstance(value, Call) and OPS[value.op].category in ("comparison", "logic")


def _assigned_names(stmt: If) -> list[str]:
    return list(dict.fromkeys(a.target.name for a in assigns((stmt,))))

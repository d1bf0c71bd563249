"""Print programs as C++ statements, and lay out lines: at most 100 characters, indented by four.

All versions of a name share one variable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
from optgen.lowerings.python.literals import one_line

INDENT = "    "
WIDTH = 100


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


def comment(text: str) -> str:
    """Return a line of the spec as a comment, without a trailing backslash or its trigraph.

    A backslash at the end would continue the comment on the next line. Old standards read two
    question marks and a slash as a backslash.
    """
    return re.sub(r"(\\|\?\?/|\s)+\Z", "", f"// {one_line(text)}")


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Return lines indented by `depth` levels."""
    return [f"{INDENT * depth}{line}" if line else line for line in lines]


def indented_blocks(blocks: Mapping[str, tuple[int, Iterable[str]]]) -> dict[str, str]:
    """Return blocks of lines as texts. Each block comes with its indentation depth."""
    return {name: "\n".join(indented(lines, depth)) for name, (depth, lines) in blocks.items()}


def wrapped_list(before: str, items: Iterable[str], after: str, column: int) -> list[str]:
    """Return `before item, item, ... after` on one line if it fits, else wrapped."""
    items = list(items)
    line = f"{before}{', '.join(items)}{after}"
    if column + len(line) <= WIDTH:
        return [line]
    lines, current = [before.rstrip()], INDENT
    for position, item in enumerate(items):
        text = item + ("," if position + 1 < len(items) else after)
        if current.strip() and column + len(current) + 1 + len(text) > WIDTH:
            lines.append(current.rstrip())
            current = INDENT
        current += text if current == INDENT else f" {text}"
    return [*lines, current]


def declarations(type: str, items: Iterable[str], column: int) -> list[str]:
    """Return declarations `type item, item, ...;` on as few lines as fit at a column."""
    lines: list[str] = []
    for item in items:
        if lines and column + len(lines[-1]) + len(item) + 2 < WIDTH:
            lines[-1] += f", {item}"
        else:
            lines.append(f"{type} {item}")
    return [f"{line};" for line in lines]


def wrapped_statement(line: str, column: int) -> list[str]:
    """Return a statement on one line if it fits at a column, else broken before operators."""
    if column + len(line) <= WIDTH:
        return [line]
    operators = [
        (depth, position) for depth, position in _operators(line) if column + position <= WIDTH
    ]
    if not operators:
        return [line]
    shallowest = min(depth for depth, _ in operators)
    end = max(position for depth, position in operators if depth == shallowest)
    rest = wrapped_statement(INDENT + line[end:].lstrip(), column)
    return [line[:end].rstrip(), *rest]


def _operators(line: str) -> list[tuple[int, int]]:
    """Return the depth and the position of each binary operator.

    A level of brackets adds 2 to the depth. A product or quotient is deeper by 1, so that sums are
    broken first.
    """
    operators = []
    for match in re.finditer(r"(?<=\S )(\+|-|\*|/|\?|:|&&?|\|\|?) ", line):
        before = line[: match.start()]
        open_brackets = sum(before.count(c) for c in "([{") - sum(before.count(c) for c in ")]}")
        operators.append((2 * open_brackets + (match[1] in "*/"), match.start()))
    return operators

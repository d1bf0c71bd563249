"""Lay out lines of C++: indented by four, at most 100 characters long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from optgen.lowerings.python.literals import one_line

INDENT = "    "
WIDTH = 100


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

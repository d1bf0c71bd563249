"""Print the address arithmetic of kernels: rows, columns, partial sums, and their masks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from optgen.ir.kinds import Axes

CandidateLine = tuple[str, str]
"""Regular expression of the names that a line assigns, and the line."""

_SUM_LINES: tuple[CandidateLine, ...] = tuple(
    (line.partition(" ")[0], line)
    for line in (
        "sums = partials + tl.load(shape + SUMS * num_tensors)",
        "sum_count = tl.load(shape + SUM_COUNT * num_tensors)",
        "part_sums = partials + tl.load(shape + GROUP_SUMS * num_tensors)",
        "part_sum_count = tl.load(shape + GROUP_SUM_COUNT * num_tensors)",
        "parts = partials + tl.load(shape + GROUP_PARTIALS * num_tensors)",
        "groups = tl.load(shape + GROUPS * num_tensors)",
    )
)
"""Addresses and counts: of the sums that a finish adds up, which blocks of elements or groups of
matrices have stored; of the partial sums that it stores for each group."""


def needed_lines(candidates: Sequence[CandidateLine], text: Iterable[str]) -> list[str]:
    """Return the candidate lines that the text needs, in order.

    A line is needed if the text, or a later needed line, uses a name that the line assigns.
    """
    used_text = "\n".join(text)
    lines: list[str] = []
    for pattern, line in reversed(candidates):
        if uses(pattern, used_text):
            lines.append(_mark_unused(line, used_text))
            used_text += f"\n{line}"
    return lines[::-1]


def _mark_unused(line: str, used_text: str) -> str:
    """Return a line with `_` before each unused name, if it assigns several names."""
    names, equals, value = line.partition(" = ")
    if ", " not in names:
        return line
    marked = [name if uses(name, used_text) else f"_{name}" for name in names.split(", ")]
    return f"{', '.join(marked)}{equals}{value}"


def uses(pattern: str, text: str) -> bool:
    """Tell whether a text contains a name that matches the pattern."""
    return re.search(rf"\b{pattern}\b", text) is not None


def tile_addresses(slot_counts: Mapping[Axes, int]) -> list[CandidateLine]:
    """Return the address and mask lines that a tile may need for its rows, columns and matrices."""
    return [
        _assignment("in_rows", "lines_inside(remaining_matrices, remaining_rows, DEPTH, HEIGHT)"),
        _assignment("row_lanes", "first_row + lines(height.to(tl.int32), DEPTH, HEIGHT)"),
        _assignment(
            "in_columns", "lines_inside(remaining_matrices, remaining_columns, DEPTH, WIDTH)"
        ),
        _assignment("column_lanes", "first_column + lines(width.to(tl.int32), DEPTH, WIDTH)"),
        _assignment("in_batch", "tl.arange(0, DEPTH) < remaining_matrices"),
        _assignment("across", "tl.cdiv(width, WIDTH)"),
        _assignment("down", "tl.cdiv(height, HEIGHT)"),
        _assignment("all_rows", "depth * height"),
        _assignment("all_columns", "depth * width"),
        ("values", "values += tl.load(shape + VALUES * num_tensors)"),
        _assignment("row_values", "values + row_lanes"),
        _assignment("column_values", f"{_columns_start(slot_counts)} + column_lanes"),
        _assignment(
            "matrix_values", f"{_matrices_start(slot_counts)} + matrix + tl.arange(0, DEPTH)"
        ),
    ]


def finish_addresses(
    slot_counts: Mapping[Axes, int], states: Sequence[Mapping[str, Any]]
) -> list[CandidateLine]:
    """Return the address and mask lines that a program for some matrices may need."""
    return [
        _assignment("entry", "table + tensor"),
        _assignment("shape", "shapes + tensor"),
        ("scalars", "scalars += tensor * SCALARS"),
        ("(?:depth|height|width)", "depth, height, width = extents(shape, num_tensors)"),
        *_SUM_LINES,
        _assignment("matrix", "matrix_group * DEPTH"),
        _assignment("remaining_matrices", "depth - matrix"),
        _assignment("all_rows", "depth * height"),
        _assignment("all_columns", "depth * width"),
        _assignment("matrices", "tl.arange(0, DEPTH)[:, None]"),
        _assignment("in_batch", "matrices < remaining_matrices"),
        ("values", "values += tl.load(shape + VALUES * num_tensors)"),
        _assignment("row_values", "values + matrix * height"),
        _assignment("column_values", f"{_columns_start(slot_counts)} + matrix * width"),
        _assignment("matrix_values", f"{_matrices_start(slot_counts)} + matrix"),
        *(line for state in states for line in _state_lines(state)),
    ]


def flat_addresses(reads_partials: bool) -> list[CandidateLine]:
    """Return the address lines that a program for a whole tensor may need.

    `reads_partials` tells whether the program reads partial sums of the previous phase.
    """
    return [
        _assignment("entry", "table + tl.program_id(0)"),
        _assignment("shape", "shapes + tl.program_id(0)"),
        ("scalars", "scalars += tl.program_id(0) * SCALARS"),
        *(_SUM_LINES if reads_partials else []),
    ]


def tile_stores(
    sums: Sequence[str],
    row_sums: Sequence[str],
    column_sums: Sequence[str],
    slot_counts: Mapping[Axes, int],
    first_slots: Mapping[Axes, int],
) -> list[str]:
    """Return the lines that store a tile's sums.

    Every tile stores its sums over all elements in `partials`, in one slot for each sum and block.
    A tile of whole matrices stores complete row and column sums where later kernels read them,
    beginning at the slots `first_slots`. Any other tile stores partial row sums and then partial
    column sums, after the sums over all elements. `slot_counts` holds the number of slots by axes.
    """
    numbered_row_sums = enumerate(row_sums, first_slots[Axes.ROW])
    numbered_column_sums = enumerate(column_sums, first_slots[Axes.COLUMN])
    complete_stores = [
        *(_store(plus_multiple("values", n, "all_rows"), "row", s) for n, s in numbered_row_sums),
        *(
            _store(plus_multiple(_columns_start(slot_counts), n, "all_columns"), "column", s)
            for n, s in numbered_column_sums
        ),
    ]
    column_partials = plus_multiple("partials", len(row_sums), "across * all_rows")
    partial_stores = [
        *(
            _store(f"partials + {_factor('tile_column', n, 'across')} * all_rows", "row", s)
            for n, s in enumerate(row_sums)
        ),
        *(
            _store(
                f"{column_partials} + {_factor('tile_row', n, 'down')} * all_columns", "column", s
            )
            for n, s in enumerate(column_sums)
        ),
    ]
    lines = [
        f"tl.store({plus_multiple('partials', n, 'blocks')} + block, {name})"
        for n, name in enumerate(sums)
    ]
    if complete_stores:
        skip_sums = [f"partials = {plus_multiple('partials', len(sums), 'blocks')}"] if sums else []
        lines += ["if DEPTH > 1:", *_indented(complete_stores)]
        lines += ["else:", *_indented([*skip_sums, *partial_stores])]
    return lines


def _assignment(name: str, value: str) -> CandidateLine:
    return name, f"{name} = {value}"


def _state_lines(state: Mapping[str, Any]) -> Iterator[CandidateLine]:
    """Yield the lines for a row or column state: whether the state exists, and its address."""
    size = (
        "height" if state["shape"] == "row" else "width"
    )  # numbers in one matrix's part of the state
    address = f"tl.load(entry + {state['address']} * num_tensors)"
    yield _assignment(existence_variable(state["list"]), f"{address} != 0")
    yield _assignment(
        state["list"], f"{address}.to(tl.pointer_type({state['type']})) + matrix * {size}"
    )


def existence_variable(pointers: str) -> str:
    """Return the variable that tells whether the state at these pointers exists."""
    return f"{pointers}_exist"


def _columns_start(slot_counts: Mapping[Axes, int]) -> str:
    """Return the address of the first column value, after all row values."""
    return plus_multiple("values", slot_counts[Axes.ROW], "all_rows")


def _matrices_start(slot_counts: Mapping[Axes, int]) -> str:
    """Return the address of the first matrix value, after all column values."""
    return plus_multiple(_columns_start(slot_counts), slot_counts[Axes.COLUMN], "all_columns")


def plus_multiple(base: str, number: int, size: str) -> str:
    """Return the text of `base + number * size`."""
    if not number:
        return base
    return f"{base} + {size}" if number == 1 else f"{base} + {number} * {size}"


def _factor(base: str, number: int, size: str) -> str:
    """Return the text of `base + number * size` as a factor, in parentheses if it is a sum."""
    return f"({plus_multiple(base, number, size)})" if number else base


def _store(address: str, axis: str, name: str) -> str:
    return f"tl.store({address} + {axis}_lanes, {name}, in_{axis}s)"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]

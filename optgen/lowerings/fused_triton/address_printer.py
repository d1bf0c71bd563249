"""Print the address arithmetic of kernels: rows, columns, partial sums, and their masks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from optgen.ir.binding_times import Axes

Line = tuple[str, str]
"""Regular expression of the names that a line assigns, and the line."""

_COUNTS: tuple[Line, ...] = (
    ("blocks", "blocks = tl.load(shape + BLOCKS * tensors)"),
    ("groups", "groups = tl.load(shape + GROUPS * tensors)"),
)
_PARTS = ("parts", "parts = partials + tl.load(shape + GROUP_PARTIALS * tensors)")


def needed(candidates: Sequence[Line], text: Iterable[str]) -> list[str]:
    """Return the candidate lines that the text needs, in order.

    A line is needed if the text, or a needed line after it, uses a name that it assigns.
    """
    used = "\n".join(text)
    lines: list[str] = []
    for pattern, line in reversed(candidates):
        if uses(pattern, used):
            lines.append(_mark_unused(line, used))
            used += f"\n{line}"
    return lines[::-1]


def _mark_unused(line: str, used: str) -> str:
    """Return a line with `_` before each unused name, if it assigns several names."""
    names, equals, value = line.partition(" = ")
    if ", " not in names:
        return line
    marked = [name if uses(name, used) else f"_{name}" for name in names.split(", ")]
    return f"{', '.join(marked)}{equals}{value}"


def uses(pattern: str, text: str) -> bool:
    """Tell whether a text contains a name that matches the pattern."""
    return re.search(rf"\b{pattern}\b", text) is not None


def tile_addresses(counts: Mapping[Axes, int]) -> list[Line]:
    """Return the address and mask lines that a tile may need for its small values."""
    return [
        _let("in_rows", "lines_inside(matrices_left, rows_left, DEPTH, HEIGHT)"),
        _let("row_lanes", "first_row + lines(height.to(tl.int32), DEPTH, HEIGHT)"),
        _let("in_columns", "lines_inside(matrices_left, columns_left, DEPTH, WIDTH)"),
        _let("column_lanes", "first_column + lines(width.to(tl.int32), DEPTH, WIDTH)"),
        _let("in_batch", "tl.arange(0, DEPTH) < matrices_left"),
        _let("across", "tl.cdiv(width, WIDTH)"),
        _let("down", "tl.cdiv(height, HEIGHT)"),
        _let("all_rows", "depth * height"),
        _let("all_columns", "depth * width"),
        ("values", "values += tl.load(shape + VALUES * tensors)"),
        _let("row_values", "values + row_lanes"),
        _let("column_values", f"{_columns_start(counts)} + column_lanes"),
        _let("matrix_values", f"{_matrices_start(counts)} + matrix + tl.arange(0, DEPTH)"),
    ]


def finish_addresses(counts: Mapping[Axes, int], states: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the address and mask lines that a program for some matrices may need."""
    return [
        _let("row", "rows + tensor"),
        _let("shape", "shapes + tensor"),
        ("scalars", "scalars += tensor * SCALARS"),
        ("(?:depth|height|width)", "depth, height, width = extents(shape, tensors)"),
        _PARTS,
        ("partials", "partials += tl.load(shape + PARTIALS * tensors)"),
        *_COUNTS,
        _let("matrix", "group * DEPTH"),
        _let("matrices_left", "depth - matrix"),
        _let("all_rows", "depth * height"),
        _let("all_columns", "depth * width"),
        _let("matrices", "tl.arange(0, DEPTH)[:, None]"),
        _let("in_batch", "matrices < matrices_left"),
        ("values", "values += tl.load(shape + VALUES * tensors)"),
        _let("row_values", "values + matrix * height"),
        _let("column_values", f"{_columns_start(counts)} + matrix * width"),
        _let("matrix_values", f"{_matrices_start(counts)} + matrix"),
        *(line for state in states for line in _state(state)),
    ]


def flat_addresses(reads_partials: bool) -> list[Line]:
    """Return the address lines that a program for a whole tensor may need.

    `reads_partials` tells whether the program reads partial sums of the phase before.
    """
    partials_lines = [
        _PARTS,
        ("partials", "partials += tl.load(shape + PARTIALS * tensors)"),
        *_COUNTS,
    ]
    return [
        _let("row", "rows + tl.program_id(0)"),
        _let("shape", "shapes + tl.program_id(0)"),
        ("scalars", "scalars += tl.program_id(0) * SCALARS"),
        *(partials_lines if reads_partials else []),
    ]


def tile_stores(
    sums: Sequence[str],
    row_sums: Sequence[str],
    column_sums: Sequence[str],
    counts: Mapping[Axes, int],
    firsts: Mapping[Axes, int],
) -> list[str]:
    """Return the lines that store a tile's sums.

    Every tile stores its sums over all elements in `partials`, in one slot for each sum and block.
    A tile of whole matrices stores complete row and column sums where later kernels read them, from
    the slots `firsts` on. Any other tile stores partial row sums and then partial column sums,
    behind the sums over all elements. `counts` holds the numbers of all slots by axes.
    """
    rows = enumerate(row_sums, firsts[Axes.ROW])
    columns = enumerate(column_sums, firsts[Axes.COLUMN])
    complete = [
        *(_store(times("values", n, "all_rows"), "row", s) for n, s in rows),
        *(_store(times(_columns_start(counts), n, "all_columns"), "column", s) for n, s in columns),
    ]
    column_parts = times("partials", len(row_sums), "across * all_rows")
    parts = [
        *(
            _store(f"partials + {_factor('tile_column', n, 'across')} * all_rows", "row", s)
            for n, s in enumerate(row_sums)
        ),
        *(
            _store(f"{column_parts} + {_factor('tile_row', n, 'down')} * all_columns", "column", s)
            for n, s in enumerate(column_sums)
        ),
    ]
    lines = [
        f"tl.store({times('partials', n, 'blocks')} + block, {name})" for n, name in enumerate(sums)
    ]
    if complete:
        skip_sums = [f"partials = {times('partials', len(sums), 'blocks')}"] if sums else []
        lines += ["if DEPTH > 1:", *_indented(complete)]
        lines += ["else:", *_indented([*skip_sums, *parts])]
    return lines


def _let(name: str, value: str) -> Line:
    return name, f"{name} = {value}"


def _state(state: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines for a row or column state: whether it exists, and its address."""
    size = "height" if state["shape"] == "row" else "width"  # numbers of one matrix
    address = f"tl.load(row + {state['address']} * tensors)"
    yield _let(exists(state["list"]), f"{address} != 0")
    yield _let(state["list"], f"{address}.to(tl.pointer_type({state['type']})) + matrix * {size}")


def exists(state: str) -> str:
    """Return the variable that tells whether the state of this list exists."""
    return f"{state}_exist"


def _columns_start(counts: Mapping[Axes, int]) -> str:
    """Return the address of the first column value, behind all row values."""
    return times("values", counts[Axes.ROW], "all_rows")


def _matrices_start(counts: Mapping[Axes, int]) -> str:
    """Return the address of the first matrix value, behind all column values."""
    return times(_columns_start(counts), counts[Axes.COLUMN], "all_columns")


def times(base: str, number: int, size: str) -> str:
    """Return the text of `base + number * size`."""
    if not number:
        return base
    return f"{base} + {size}" if number == 1 else f"{base} + {number} * {size}"


def _factor(base: str, number: int, size: str) -> str:
    """Return the text of `base + number * size` as a factor, in parentheses if it is a sum."""
    return f"({times(base, number, size)})" if number else base


def _store(address: str, axis: str, name: str) -> str:
    return f"tl.store({address} + {axis}_lanes, {name}, in_{axis}s)"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]

"""Print the address arithmetic of kernels: rows, columns, partial sums, and their masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from optgen.ir.kinds import Axes

Use = Callable[[str], str]
"""Function that returns the text of a name, and may note that it is used."""


class UsedNames(set[str]):
    """Names that the lines of a kernel use; a printer calls it with each name that it prints."""

    def __call__(self, name: str) -> str:
        """Note that a name is used, and return it."""
        self.add(name)
        return name


@dataclass(frozen=True)
class AddressLine:
    """A line that a kernel has only if later lines use a name that it assigns.

    In its `value`, names that other lines may assign are in braces.
    """

    names: tuple[str, ...]
    value: str
    operator: str = "="

    def print(self, used: UsedNames) -> str:
        """Return the line; one of several names has `_` before it if it is not used."""
        names = self.names
        if len(names) > 1:
            names = tuple(name if name in used else f"_{name}" for name in names)
        values = {name: used(name) for _, name, _, _ in Formatter().parse(self.value) if name}
        return f"{', '.join(names)} {self.operator} {self.value.format(**values)}"


def needed_lines(candidates: Sequence[AddressLine], used: UsedNames) -> list[str]:
    """Return the candidates that assign a used name, in order; `used` gets the names they use."""
    needed = (each.print(used) for each in reversed(candidates) if not used.isdisjoint(each.names))
    return list(needed)[::-1]


def in_braces(name: str) -> str:
    """Return a name as it stands in the value of an `AddressLine`."""
    return f"{{{name}}}"


def _line(name: str, value: str, operator: str = "=") -> AddressLine:
    return AddressLine((name,), value, operator)


_SUM_LINES = (
    _line("sums", "{partials} + tl.load({shape} + SUMS * num_tensors)"),
    _line("sum_count", "tl.load({shape} + SUM_COUNT * num_tensors)"),
    _line("part_sums", "{partials} + tl.load({shape} + GROUP_SUMS * num_tensors)"),
    _line("part_sum_count", "tl.load({shape} + GROUP_SUM_COUNT * num_tensors)"),
    _line("parts", "{partials} + tl.load({shape} + GROUP_PARTIALS * num_tensors)"),
    _line("groups", "tl.load({shape} + GROUPS * num_tensors)"),
)
"""Addresses and counts: of the sums that a finish adds up, which blocks of elements or groups of
matrices have stored; of the partial sums that it stores for each group."""
_ENTRY = _line("entry", "{table} + tl.program_id(0)")
_SHAPE = _line("shape", "{shapes} + tl.program_id(0)")
_SCALARS = _line("scalars", "tl.program_id(0) * SCALARS", "+=")
_VALUES = _line("values", "tl.load({shape} + VALUES * num_tensors)", "+=")


def tile_addresses(slot_counts: Mapping[Axes, int]) -> list[AddressLine]:
    """Return the address and mask lines that a tile may need for its rows, columns and matrices."""
    return [
        _line("in_rows", "lines_inside(remaining_matrices, remaining_rows, DEPTH, HEIGHT)"),
        _line("row_lanes", "first_row + lines(height.to(tl.int32), DEPTH, HEIGHT)"),
        _line("in_columns", "lines_inside(remaining_matrices, remaining_columns, DEPTH, WIDTH)"),
        _line("column_lanes", "{first_column} + lines(width.to(tl.int32), DEPTH, WIDTH)"),
        _line("in_batch", "tl.arange(0, DEPTH) < remaining_matrices"),
        _line("across", "tl.cdiv(width, WIDTH)"),
        _line("down", "tl.cdiv(height, HEIGHT)"),
        _line("all_rows", "depth * height"),
        _line("all_columns", "depth * width"),
        _VALUES,
        _line("row_values", "{values} + {row_lanes}"),
        _line("column_values", f"{_columns_start(slot_counts, in_braces)} + {{column_lanes}}"),
        _line(
            "matrix_values",
            f"{_matrices_start(slot_counts, in_braces)} + matrix + tl.arange(0, DEPTH)",
        ),
    ]


def finish_addresses(
    slot_counts: Mapping[Axes, int], states: Sequence[Mapping[str, Any]]
) -> list[AddressLine]:
    """Return the address and mask lines that a program for some matrices may need."""
    return [
        _line("entry", "{table} + tensor"),
        _line("shape", "{shapes} + tensor"),
        _line("scalars", "tensor * SCALARS", "+="),
        AddressLine(("depth", "height", "width"), "extents({shape}, num_tensors)"),
        *_SUM_LINES,
        _line("matrix", "matrix_group * DEPTH"),
        _line("remaining_matrices", "{depth} - {matrix}"),
        _line("all_rows", "{depth} * {height}"),
        _line("all_columns", "{depth} * {width}"),
        _line("matrices", "tl.arange(0, DEPTH)[:, None]"),
        _line("in_batch", "{matrices} < {remaining_matrices}"),
        _VALUES,
        _line("row_values", "{values} + {matrix} * {height}"),
        _line(
            "column_values", f"{_columns_start(slot_counts, in_braces)} + {{matrix}} * {{width}}"
        ),
        _line("matrix_values", f"{_matrices_start(slot_counts, in_braces)} + {{matrix}}"),
        *(line for state in states for line in _state_lines(state)),
    ]


def flat_addresses(reads_partials: bool) -> list[AddressLine]:
    """Return the address lines that a program for a whole tensor may need.

    `reads_partials` tells whether the program reads partial sums of the previous phase.
    """
    return [_ENTRY, _SHAPE, _SCALARS, *(_SUM_LINES if reads_partials else [])]


def prologue_addresses(hyper_count: int) -> list[AddressLine]:
    """Return the address lines that the scalar program of a tensor may need."""
    group = "tl.load({entry} + PARAM_GROUP * num_tensors)"
    return [_ENTRY, _SHAPE, _line("hyper", f"{{hypers}} + {group} * {hyper_count}"), _SCALARS]


def tile_stores(
    sums: Sequence[str],
    row_sums: Sequence[str],
    column_sums: Sequence[str],
    slot_counts: Mapping[Axes, int],
    first_slots: Mapping[Axes, int],
    use: Use,
) -> list[str]:
    """Return the lines that store a tile's sums.

    Every tile stores its sums over all elements in `partials`, in one slot for each sum and block.
    A tile of whole matrices stores complete row and column sums where later kernels read them,
    beginning at the slots `first_slots`. Any other tile stores partial row sums and then partial
    column sums, after the sums over all elements. `slot_counts` holds the number of slots by axes.
    """
    if not (sums or row_sums or column_sums):
        return []
    complete_stores, partial_stores = [], []
    for n, name in enumerate(row_sums):
        address = plus_multiple(use("values"), first_slots[Axes.ROW] + n, use, "all_rows")
        complete_stores.append(_store(address, "row", name, use))
        factor = _factor("tile_column", n, use, "across")
        address = f"partials + {factor} * {use('all_rows')}"
        partial_stores.append(_store(address, "row", name, use))
    for n, name in enumerate(column_sums):
        column_partials = plus_multiple("partials", len(row_sums), use, "across", "all_rows")
        start, slot = _columns_start(slot_counts, use), first_slots[Axes.COLUMN] + n
        address = plus_multiple(start, slot, use, "all_columns")
        complete_stores.append(_store(address, "column", name, use))
        factor = _factor("tile_row", n, use, "down")
        address = f"{column_partials} + {factor} * {use('all_columns')}"
        partial_stores.append(_store(address, "column", name, use))
    lines = ["partials += tl.load(shape + PARTIALS * num_tensors)"]
    if sums and (len(sums) > 1 or complete_stores):
        lines.append("blocks = tl.load(shape + BLOCKS * num_tensors)")
    lines += [
        f"tl.store({plus_multiple('partials', n, use, 'blocks')} + block, {name})"
        for n, name in enumerate(sums)
    ]
    if complete_stores:
        skip_sums = f"partials = {plus_multiple('partials', len(sums), use, 'blocks')}"
        partial_stores = [skip_sums, *partial_stores] if sums else partial_stores
        lines += ["if DEPTH > 1:", *indented(complete_stores)]
        lines += ["else:", *indented(partial_stores)]
    return lines


def _state_lines(state: Mapping[str, Any]) -> Iterator[AddressLine]:
    """Yield the lines for a row or column state: whether the state exists, and its address."""
    size = "{height}" if state["shape"] == "row" else "{width}"  # of one matrix's part
    address = f"tl.load({{entry}} + {state['address']} * num_tensors)"
    yield _line(existence_variable(state["list"]), f"{address} != 0")
    pointer_type = f"tl.pointer_type({state['type']})"
    yield _line(state["list"], f"{address}.to({pointer_type}) + {{matrix}} * {size}")


def existence_variable(pointers: str) -> str:
    """Return the variable that tells whether the state at these pointers exists."""
    return f"{pointers}_exist"


def _columns_start(slot_counts: Mapping[Axes, int], use: Use) -> str:
    """Return the address of the first column value, after all row values."""
    return plus_multiple(use("values"), slot_counts[Axes.ROW], use, "all_rows")


def _matrices_start(slot_counts: Mapping[Axes, int], use: Use) -> str:
    """Return the address of the first matrix value, after all column values."""
    start = _columns_start(slot_counts, use)
    return plus_multiple(start, slot_counts[Axes.COLUMN], use, "all_columns")


def plus_multiple(base: str, number: int, use: Use, *sizes: str) -> str:
    """Return the text of `base` plus `number` times the product of the names `sizes`."""
    if not number:
        return base
    times = "" if number == 1 else f"{number} * "
    return f"{base} + {times}{' * '.join(map(use, sizes))}"


def plus_offset(pointer: str, number: int) -> str:
    """Return the text of a pointer plus an offset."""
    return f"{pointer} + {number}" if number else pointer


def _factor(base: str, number: int, use: Use, size: str) -> str:
    """Return the text of `base + number * size` as a factor, in parentheses if it is a sum."""
    return f"({plus_multiple(base, number, use, size)})" if number else base


def _store(address: str, axis: str, name: str, use: Use) -> str:
    lanes, mask = use(f"{axis}_lanes"), use(f"in_{axis}s")
    return f"tl.store({address} + {lanes}, {name}, {mask})"


def indented(lines: Iterable[str]) -> list[str]:
    """Return lines of an inner block."""
    return [f"    {line}" for line in lines]

"""Iterate over parallel tensor lists in pieces, so that temporaries stay small.

A piece of a large CPU tensor fits into a core's cache: every operation of the update but the first
finds its operands there, which is 2 to 3.5 times faster than sweeping the whole tensor each time.
"""

from collections.abc import Iterator
from itertools import zip_longest

from torch import Tensor

SLICE = 2**18  # elements of one piece on the CPU: 1 MiB of float32, with its states within L2
CUT = 2**22  # elements of one piece elsewhere: four float32 temporaries are 64 MiB


def slices(params: list[Tensor], *lists: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Zip the lists, in flat views where a CPU tensor is large; an empty list yields None."""
    for row in zip_longest(params, *lists):
        param = row[0]
        if param.is_cpu and param.numel() > SLICE and _flat(row):
            yield from _pieces(row, SLICE)
        else:
            yield row


def cuts(params: list[Tensor], *lists: list[Tensor]) -> Iterator[tuple[list[Tensor], ...]]:
    """Split the lists into shorter ones of at most one piece's elements; an empty list stays so."""
    limit = SLICE if params[0].is_cpu else CUT
    batch: list[tuple[Tensor, ...]] = []
    room = limit
    for row in _rows(params, lists, limit):
        size = row[0].numel()
        if batch and size > room:
            yield _columns(batch)
            batch, room = [], limit
        batch.append(row)
        room -= size
    yield _columns(batch)


def _rows(
    params: list[Tensor], lists: tuple[list[Tensor], ...], limit: int
) -> Iterator[tuple[Tensor, ...]]:
    for row in zip_longest(params, *lists):
        if row[0].numel() > limit and _flat(row):
            yield from _pieces(row, limit)
        else:
            yield row


def _columns(rows: list[tuple[Tensor, ...]]) -> tuple[list[Tensor], ...]:
    return tuple([] if column[0] is None else list(column) for column in zip(*rows, strict=True))


def _flat(row: tuple[Tensor | None, ...]) -> bool:
    return all(
        tensor is None or (not tensor.is_sparse and tensor.is_contiguous()) for tensor in row
    )


def _pieces(row: tuple[Tensor, ...], size: int) -> Iterator[tuple[Tensor, ...]]:
    columns = [None if tensor is None else tensor.view(-1).split(size) for tensor in row]
    yield from zip_longest(*(column or () for column in columns))

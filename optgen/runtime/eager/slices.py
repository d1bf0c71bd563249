"""Iterate over parallel tensor lists in slices, so that temporaries stay small."""

from collections.abc import Iterator
from itertools import zip_longest

from torch import Tensor

from optgen.runtime.eager import elements_at_once
from optgen.runtime.eager.split_into_views import split_into_views


def slices(params: list[Tensor], *lists: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Zip the lists; large CPU tensors come as views of slices. An empty list yields None."""
    for row in zip_longest(params, *lists):
        large = row[0].is_cpu and row[0].numel() > elements_at_once.CPU_ELEMENTS
        yield from split_into_views(row, elements_at_once.CPU_ELEMENTS) if large else (row,)


def chunks(
    params: list[Tensor], *lists: list[Tensor], alive: int = 4
) -> Iterator[tuple[list[Tensor], ...]]:
    """Split the lists into chunks of no more elements than a slice; an empty list stays empty.

    Args:
        params, lists: Lists of equal length, or empty; the tensors of one list have one dtype.
        alive: How many lists of temporaries exist at once.
    """
    limit = _limit((params, *lists), alive)
    rows: list[tuple[Tensor, ...]] = []
    room = limit
    for whole in zip_longest(params, *lists):
        for row in split_into_views(whole, limit) if whole[0].numel() > limit else (whole,):
            size = row[0].numel()
            if rows and size > room:
                yield _transposed(rows)
                rows, room = [], limit
            rows.append(row)
            room -= size
    yield _transposed(rows)


def _limit(columns: tuple[list[Tensor], ...], alive: int) -> int:
    """Return how many elements a slice may hold; temporaries may have the widest dtype of all."""
    widest = max(column[0].itemsize for column in columns if column)
    return elements_at_once.block_elements(columns[0][0], widest, alive)


def _transposed(rows: list[tuple[Tensor, ...]]) -> tuple[list[Tensor], ...]:
    """Turn rows, one per parameter, into lists, one per stream."""
    return tuple([] if column[0] is None else list(column) for column in zip(*rows, strict=True))

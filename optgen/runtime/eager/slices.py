"""Iterate over parallel tensor lists in slices, so that temporaries stay small."""

from collections.abc import Iterator
from itertools import zip_longest

from torch import Tensor

from optgen.runtime.eager import elements_at_once
from optgen.runtime.eager.split_into_views import split_into_views


def zip_slices(params: list[Tensor], *lists: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Zip the lists, and split large CPU tensors into views; an empty list yields None."""
    for row in zip_longest(params, *lists):
        is_large = row[0].is_cpu and row[0].numel() > elements_at_once.CPU_ELEMENTS
        yield from split_into_views(row, elements_at_once.CPU_ELEMENTS) if is_large else (row,)


def chunks(
    params: list[Tensor], *lists: list[Tensor], live_lists: int = 4
) -> Iterator[tuple[list[Tensor], ...]]:
    """Split the lists into chunks that are no larger than slices; an empty list stays empty.

    Args:
        params, lists: Lists of equal length, or empty; the tensors of one list have one dtype.
        live_lists: How many lists of temporaries exist at once.
    """
    max_elements = _max_elements((params, *lists), live_lists)
    rows: list[tuple[Tensor, ...]] = []
    room = max_elements
    for whole in zip_longest(params, *lists):
        is_large = whole[0].numel() > max_elements
        for row in split_into_views(whole, max_elements) if is_large else (whole,):
            size = row[0].numel()
            if rows and size > room:
                yield _transposed(rows)
                rows, room = [], max_elements
            rows.append(row)
            room -= size
    yield _transposed(rows)


def _max_elements(columns: tuple[list[Tensor], ...], live_lists: int) -> int:
    """Return how many elements a slice may hold; temporaries may have the lists' widest dtype."""
    itemsize = max(column[0].itemsize for column in columns if column)
    return elements_at_once.block_elements(columns[0][0], itemsize, live_lists)


def _transposed(rows: list[tuple[Tensor, ...]]) -> tuple[list[Tensor], ...]:
    """Turn rows, one per parameter, into lists, one per stream."""
    return tuple([] if column[0] is None else list(column) for column in zip(*rows, strict=True))

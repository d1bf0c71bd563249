"""Iterate over parallel tensor lists in slices, so that temporaries stay small."""

from collections.abc import Iterator
from itertools import zip_longest

from torch import Tensor

from optgen.runtime.eager import elements_at_once


def slices(params: list[Tensor], *lists: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Zip the lists; large CPU tensors come as views of slices. An empty list yields None."""
    for row in zip_longest(params, *lists):
        large = row[0].is_cpu and row[0].numel() > elements_at_once.CPU_ELEMENTS
        yield from _split_row(row, elements_at_once.CPU_ELEMENTS) if large else (row,)


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
        for row in _split_row(whole, limit) if whole[0].numel() > limit else (whole,):
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
    return tuple([] if column[0] is None else list(column) for column in zip(*rows, strict=True))


def _split_row(row: tuple[Tensor, ...], size: int) -> Iterator[tuple[Tensor, ...]]:
    """Split the tensors of one parameter into views of at most `size` elements."""
    present = [tensor for tensor in row if tensor is not None]
    if any(tensor.is_sparse for tensor in present):
        yield row
    elif all(tensor.is_contiguous() for tensor in present):
        columns = [None if tensor is None else tensor.view(-1).split(size) for tensor in row]
        yield from zip_longest(*(column or () for column in columns))
    else:
        yield from _blocks(row, size)


def _blocks(row: tuple[Tensor, ...], size: int) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors that have no flat view, along the dimension with the largest stride."""
    first = row[0]
    if first.numel() <= size:
        yield row
        return
    strides = [s if n > 1 else 0 for n, s in zip(first.shape, first.stride(), strict=True)]
    dim = strides.index(max(strides))
    length = max(1, size * first.shape[dim] // first.numel())
    columns = [None if tensor is None else tensor.split(length, dim) for tensor in row]
    for block in zip_longest(*(column or () for column in columns)):
        yield from _blocks(block, size)

"""Memory for the operands of matrix ops: the matrices of one shape in one batch are one tensor.

A matrix op takes such a stack in one call, without a copy. The addresses of its matrices follow
from the first one's, so no matrix needs a tensor object of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import itemgetter, mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 16
"""A matrix begins at a multiple of so many elements, and so at an aligned address."""

Stacks = list[list[Tensor]]
"""For each batch, the stacks of its matrices."""
Places = list[tuple[int, int]]
"""For each stack, the address of its first matrix, and the bytes from one matrix to the next."""


class _Place(NamedTuple):
    """Place of a stack in the memory of all stacks, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class MatrixStacks:
    """Divides the matrices of a bucket into stacks.

    Args:
        params: The parameters of the bucket.
        counts: How many of them belong to each batch.
    """

    def __init__(self, params: Sequence[Tensor], counts: Sequence[int]) -> None:
        self._places: list[list[_Place]] = []  # for each batch
        self._size = first = 0
        order: list[int] = []  # the indices of the bucket's tensors, stack by stack
        for count in counts:
            by_shape: dict[torch.Size, list[int]] = {}
            for index in range(first, first + count):
                by_shape.setdefault(params[index].shape, []).append(index)
            self._places.append([self._place(shape, len(by_shape[shape])) for shape in by_shape])
            order += chain.from_iterable(by_shape.values())
            first += count
        positions = sorted(range(len(order)), key=order.__getitem__)
        is_ordered = positions == list(range(len(order)))
        self._in_order: Any = None if is_ordered else itemgetter(*positions)

    def _place(self, shape: torch.Size, count: int) -> _Place:
        step = -(-shape.numel() // _ALIGNMENT) * _ALIGNMENT
        place = _Place((count, *shape), (step, *_row_major_strides(shape)), self._size)
        self._size += step * count
        return place

    def allocate(self, dtype: torch.dtype, device: torch.device) -> Stacks:
        """Return memory for all stacks."""
        flat = torch.empty(self._size, dtype=dtype, device=device)
        return [[torch.as_strided(flat, *place) for place in places] for places in self._places]

    def addresses(self, places: Places) -> array[int]:
        """Return the addresses of the matrices, in the order of the bucket's tensors."""
        row = array("q")
        counts = (place.shape[0] for place in chain.from_iterable(self._places))
        for (first, step), count in zip(places, counts, strict=True):
            row.extend(range(first, first + count * step, step) if step else repeat(first, count))
        return row if self._in_order is None else array("q", self._in_order(row))


def places_of(stacks: Stacks) -> Places:
    """Return where the stacks are; the addresses of their matrices follow from it."""
    return [(s.data_ptr(), s.stride(0) * s.itemsize) for of_batch in stacks for s in of_batch]


def _row_major_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor of this shape."""
    products = accumulate(reversed(shape[1:]), mul, initial=1)
    return list(products)[::-1] if shape else []

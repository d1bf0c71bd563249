"""Parts of tensors for rules with reductions: what is small goes along with the part it belongs to.

A reduction needs the whole tensor before the next trip begins, so a list is first cut into shares
of whole tensors, and a tensor too large for one share is gone over block by block, each trip anew.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.eager.slices import CPU_ELEMENTS, DEVICE_BYTES

ALIVE = 8  # lists of temporaries there may be at once
Box = tuple[slice, ...]


def sublists(params: list[Tensor], *lists: Sequence[Tensor]) -> Iterator[tuple[Any, ...]]:
    """Split the lists into shorter ones; one share has few elements, or a single tensor.

    The tensors of a bucket have one shape, so that every share but the last has equally many.
    """
    count = max(1, _limit(params[0]) // max(1, params[0].numel()))
    for start in range(0, len(params), count):
        yield tuple(tensors[start : start + count] for tensors in (params, *lists))


def needs_blocks(param: Tensor) -> bool:
    """Whether a tensor is gone over in several blocks: what one leaves is gone with the next."""
    return param.numel() > _limit(param)


def blocks(param: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The blocks of a tensor, each with its part of the others: rows of its rows, all of a number.

    A number that a reduction made is float64 and would make the block so: it comes in float32
    unless the tensor is float64 too.

    Args:
        param: of any shape.
        others: of the same shape, but for sizes of 1 where there is one for all; None for a state
            that is not there.
    """
    (row,) = one_block(param, *others)
    if not needs_blocks(param):
        yield row
        return
    for box in _boxes(param.shape, _limit(param)):
        yield tuple(x if x is None else x[_inside(box, x)] for x in row)


def one_block(param: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The whole tensor as its only block, whatever its size: what a matrix word takes."""
    yield (param, *(_as_computed(tensor, param) for tensor in others))


def one_list_block(
    params: list[Tensor], *lists: Sequence[Tensor]
) -> Iterator[tuple[list[Any], ...]]:
    """The same for a share of whole tensors."""
    yield (params, *([_as_computed(x, params[0]) for x in column] for column in lists))


def list_blocks(params: list[Tensor], *lists: Sequence[Tensor]) -> Iterator[tuple[list[Any], ...]]:
    """The same for a share of whole tensors: all of them at once, or one in blocks.

    An empty list stands for a state that is not there.
    """
    if not needs_blocks(params[0]):
        yield from one_list_block(params, *lists)
        return
    columns: list[Sequence[Tensor | None]] = [column or [None] * len(params) for column in lists]
    for row in zip(params, *columns, strict=True):
        for parts in blocks(*row):
            yield tuple([] if part is None else [part] for part in parts)


def list_chunks(
    params: list[Tensor], *lists: Sequence[Tensor], sums: Sequence[Sequence[Tensor]] = ()
) -> Iterator[tuple[list[Any], ...]]:
    """Share after share of whole lists, a tensor too large for one in blocks.

    `sums` are numbers that are added to in place: they come last, in the type they are in.
    """
    for sublist in sublists(params, *lists, *sums):
        taken = sublist[: 1 + len(lists)]
        for row in list_blocks(*taken):
            yield (*row, *sublist[len(taken) :])


def _limit(tensor: Tensor) -> int:
    """How many elements a block may have: what is computed with has four bytes at least."""
    return CPU_ELEMENTS if tensor.is_cpu else 4 * DEVICE_BYTES // (ALIVE * max(4, tensor.itemsize))


def _as_computed(tensor: Tensor | None, param: Tensor) -> Tensor | None:
    if tensor is None or tensor.dtype != torch.float64 or param.dtype == torch.float64:
        return tensor
    return tensor.float()


def _boxes(shape: Sequence[int], limit: int) -> Iterator[Box]:
    """Boxes of at most `limit` elements: the leading axes are cut until the rest fits."""
    steps = list(shape)
    for axis in range(len(steps)):
        inner = prod(shape[axis + 1 :])
        steps[axis] = max(1, limit // inner)
        if inner <= limit:
            break
    ranges = [range(0, size, step) for size, step in zip(shape, steps, strict=True)]
    for starts in product(*ranges):
        yield tuple(slice(at, at + step) for at, step in zip(starts, steps, strict=True))


def _inside(box: Box, tensor: Tensor) -> Box:
    """The box where a tensor has more than one element to choose from."""
    sizes = zip(box, tensor.shape, strict=True)
    return tuple(part if size > 1 else slice(None) for part, size in sizes)

"""Split tensors into blocks for rules with reductions, so that temporaries stay small.

A sweep may read the result of a reduction over the whole tensor, so a sweep must finish a tensor
before the next sweep begins on it. A list is therefore split into sublists of whole tensors. A
tensor too large for a sublist of its own is split into blocks, anew in every sweep. Row and column
values are split along with the tensor that they belong to.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.eager import elements_at_once

MAX_LIVE_LISTS = 8  # how many lists of temporaries may exist at once
Box = tuple[slice, ...]


def sublists(params: list[Tensor], *lists: Sequence[Tensor]) -> Iterator[tuple[Any, ...]]:
    """Yield sublists of whole tensors; each holds few elements, or a single large tensor.

    The tensors of a bucket have one shape, so all sublists but the last have equally many tensors.
    """
    length = max(1, _max_elements(params[0]) // max(1, params[0].numel()))
    for start in range(0, len(params), length):
        yield tuple(tensors[start : start + length] for tensors in (params, *lists))


def needs_blocks(param: Tensor) -> bool:
    """Tell whether a tensor is split into several blocks.

    The temporaries of a block are then freed before the next block, or the next sweep, begins.
    """
    return param.numel() > _max_elements(param)


def blocks(param: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Yield the blocks of a tensor, each with the matching blocks of the other tensors.

    An axis of size 1 is not split: a block comes with the row values of its rows, and with all
    single numbers. A reduction to a single number is float64 and would promote the block to
    float64. So a float64 tensor among `others` becomes float32, unless `param` is float64 too.

    Args:
        param: A tensor of any shape.
        others: Tensors of the same shape, or of size 1 along the axes that they are broadcast over;
            None stands for an absent state.
    """
    (whole_block,) = one_block(param, *others)
    if not needs_blocks(param):
        yield whole_block
        return
    for box in _boxes(param.shape, _max_elements(param)):
        yield tuple(x if x is None else x[_inside(box, x)] for x in whole_block)


def one_block(param: Tensor, *others: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Yield a tensor of any size as a single block: a matrix op takes whole tensors."""
    yield (param, *(_in_compute_dtype(tensor, param) for tensor in others))


def one_list_block(
    params: list[Tensor], *lists: Sequence[Tensor]
) -> Iterator[tuple[list[Any], ...]]:
    """Yield a sublist as a single block, whatever its size."""
    yield (params, *([_in_compute_dtype(x, params[0]) for x in column] for column in lists))


def list_blocks(params: list[Tensor], *lists: Sequence[Tensor]) -> Iterator[tuple[list[Any], ...]]:
    """Yield the blocks of a sublist: the whole sublist, or the blocks of a single large tensor.

    An empty list stands for an absent state.
    """
    if not needs_blocks(params[0]):
        yield from one_list_block(params, *lists)
        return
    columns: list[Sequence[Tensor | None]] = [column or [None] * len(params) for column in lists]
    for tensors in zip(params, *columns, strict=True):
        for block in blocks(*tensors):
            yield tuple([] if part is None else [part] for part in block)


def list_chunks(
    params: list[Tensor], *lists: Sequence[Tensor], sums: Sequence[Sequence[Tensor]] = ()
) -> Iterator[tuple[list[Any], ...]]:
    """Split lists into sublists, and yield the blocks of each sublist.

    Args:
        params, lists: As `list_blocks` takes them.
        sums: Reduction results that the caller adds to in place. They come last in each tuple, and
            keep their dtype.
    """
    num_split_lists = 1 + len(lists)  # the sums come after these lists, and are not split
    for sublist in sublists(params, *lists, *sums):
        for block in list_blocks(*sublist[:num_split_lists]):
            yield (*block, *sublist[num_split_lists:])


def _max_elements(tensor: Tensor) -> int:
    """Return how many elements a block may have; temporaries have at least 4 bytes per element."""
    return elements_at_once.block_elements(tensor, max(4, tensor.itemsize), MAX_LIVE_LISTS)


def _in_compute_dtype(tensor: Tensor | None, param: Tensor) -> Tensor | None:
    """Return a float64 tensor in float32, unless the parameter is float64; others unchanged."""
    if tensor is None or tensor.dtype != torch.float64 or param.dtype == torch.float64:
        return tensor
    return tensor.float()


def _boxes(shape: Sequence[int], max_elements: int) -> Iterator[Box]:
    """Yield boxes of at most `max_elements`; leading axes are split until the others fit whole."""
    box_shape = list(shape)
    for axis in range(len(box_shape)):
        inner_elements = prod(shape[axis + 1 :])
        box_shape[axis] = max(1, max_elements // inner_elements)
        if inner_elements <= max_elements:
            break
    ranges = [range(0, size, length) for size, length in zip(shape, box_shape, strict=True)]
    for starts in product(*ranges):
        pairs = zip(starts, box_shape, strict=True)
        yield tuple(slice(start, start + length) for start, length in pairs)


def _inside(box: Box, tensor: Tensor) -> Box:
    """Return the box of a tensor in `box`; an axis of size 1 is taken whole."""
    sizes = zip(box, tensor.shape, strict=True)
    return tuple(part if size > 1 else slice(None) for part, size in sizes)

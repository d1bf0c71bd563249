"""Split large tensors of one parameter into views, whether they are contiguous or not."""

from collections.abc import Iterator
from itertools import zip_longest

from torch import Tensor


def split_into_views(row: tuple[Tensor, ...], max_elements: int) -> Iterator[tuple[Tensor, ...]]:
    """Split the tensors of one parameter into views of at most `max_elements`."""
    present = [tensor for tensor in row if tensor is not None]
    if any(tensor.is_sparse for tensor in present):
        yield row
    elif all(tensor.is_contiguous() for tensor in present):
        columns = [
            None if tensor is None else tensor.view(-1).split(max_elements) for tensor in row
        ]
        yield from zip_longest(*(column or () for column in columns))
    else:
        yield from _strided_views(row, max_elements)


def _strided_views(row: tuple[Tensor, ...], max_elements: int) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors that have no flat view, along the dimension with the largest stride."""
    first = row[0]
    if first.numel() <= max_elements:
        yield row
        return
    strides = [s if n > 1 else 0 for n, s in zip(first.shape, first.stride(), strict=True)]
    dim = strides.index(max(strides))
    length = max(1, max_elements * first.shape[dim] // first.numel())
    columns = [None if tensor is None else tensor.split(length, dim) for tensor in row]
    for block in zip_longest(*(column or () for column in columns)):
        yield from _strided_views(block, max_elements)

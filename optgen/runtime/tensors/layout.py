"""Memory layouts: which tensors a fused kernel may walk as one flat range of elements.

The element at flat offset i must be the same element of every stream, so all streams of a parameter
need equal strides and no holes. Where they have not, the kernel works on copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_plain(tensor: Tensor) -> bool:
    """Whether memory holds the elements in their order, and not their negatives."""
    return tensor.is_contiguous() and not tensor.is_neg()


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one range of memory, in any order of dimensions."""
    if tensor.is_neg():
        return False
    if tensor.is_contiguous():
        return True
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.permute(order).is_contiguous()


def same_walk(tensor: Tensor, like: Tensor) -> bool:
    """Whether both tensors, the second dense, put equal indices at equal flat offsets."""
    if tensor.is_neg() or tensor.shape != like.shape:
        return False
    if tensor.is_contiguous() and like.is_contiguous():
        return True
    return all(
        ours == theirs
        for size, ours, theirs in zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
        if size != 1
    )


def copies(streams: Sequence[Tensor], by_matrix: bool = False) -> list[int]:
    """Which of one parameter's streams (the parameter first) must be replaced by copies.

    What goes `by_matrix` asks for more: elements in the order of their indices.
    """
    param = streams[0]
    if by_matrix or not is_dense(param):
        return [i for i, stream in enumerate(streams) if not is_plain(stream)]
    return [i for i, stream in enumerate(streams) if not same_walk(stream, param)]


def copy_of(tensor: Tensor, param: Tensor, by_matrix: bool = False) -> Tensor:
    """A copy that can be walked beside the parameter (or beside its copy, where it has one)."""
    if by_matrix or not is_dense(param):
        return tensor.clone(memory_format=torch.contiguous_format)
    return torch.empty_strided(
        param.shape, param.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def beside(tensor: Tensor, param: Tensor) -> Tensor:
    """The tensor, or a copy of it, that can be walked beside a parameter of its shape."""
    if is_plain(tensor) and is_plain(param):  # of thousands of matrices all are
        return tensor
    streams = (param, tensor)
    return copy_of(tensor, param) if 1 in copies(streams) else tensor

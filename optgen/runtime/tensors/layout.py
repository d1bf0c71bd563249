"""Memory layouts that a fused kernel can go over as one flat range of elements.

A stream is one of the tensors that a kernel goes over for a parameter: the parameter, its gradient,
its states. Flat offset i must stand for the same element in every stream. So all streams of a
parameter need equal strides and no holes; a stream with another layout is replaced by a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_row_major(tensor: Tensor) -> bool:
    """Tell whether a tensor is contiguous, and not a view whose memory holds its negative."""
    return tensor.is_contiguous() and not tensor.is_neg()


def is_dense(tensor: Tensor) -> bool:
    """Tell whether the elements fill one range of memory, in any order of dimensions."""
    if tensor.is_neg():
        return False
    if tensor.is_contiguous():
        return True
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return tensor.permute(order).is_contiguous()


def same_layout(tensor: Tensor, like: Tensor) -> bool:
    """Tell whether each flat offset stands for the same index in both tensors; `like` is dense."""
    if tensor.is_neg() or tensor.shape != like.shape:
        return False
    if tensor.is_contiguous() and like.is_contiguous():
        return True
    return all(
        ours == theirs
        for size, ours, theirs in zip(tensor.shape, tensor.stride(), like.stride(), strict=True)
        if size != 1
    )


def streams_to_copy(streams: Sequence[Tensor], by_matrix: bool = False) -> list[int]:
    """Return the indices of the streams of one parameter that must be replaced by copies.

    Args:
        streams: the parameter first.
        by_matrix: the kernel goes over matrices, and needs row-major streams.
    """
    param = streams[0]
    if by_matrix or not is_dense(param):
        return [index for index, stream in enumerate(streams) if not is_row_major(stream)]
    return [index for index, stream in enumerate(streams) if not same_layout(stream, param)]


def copy_like(tensor: Tensor, param: Tensor, by_matrix: bool = False) -> Tensor:
    """Copy a tensor to its parameter's layout, or row-major if `streams_to_copy` asks for that."""
    if by_matrix or not is_dense(param):
        return tensor.clone(memory_format=torch.contiguous_format)
    return torch.empty_strided(
        param.shape, param.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def laid_out_like(tensor: Tensor, param: Tensor) -> Tensor:
    """Return a tensor, or a copy of it if a kernel cannot go over it along with its parameter."""
    if is_row_major(tensor) and is_row_major(param):  # the usual case, tested first
        return tensor
    must_copy = 1 in streams_to_copy((param, tensor))  # 1: the index of `tensor`
    return copy_like(tensor, param) if must_copy else tensor

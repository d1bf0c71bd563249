"""Memory layouts that a fused kernel can go over as one flat range of elements.

A stream is one of the tensors that a kernel goes over for a parameter: the parameter, its gradient,
its states. Flat offset i must stand for the same element in every stream. So all streams of a
parameter need equal strides and no holes; a stream with another layout is replaced by a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, le

import torch
from torch import Tensor

from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.torch_private import is_contiguous, storage_offset, untyped_storage

_nbytes, _storage_bytes = attrgetter("nbytes"), torch.UntypedStorage.nbytes


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


def span(tensor: Tensor) -> int:
    """Return how many elements lie in memory from a tensor's first element to its last."""
    if not tensor.numel():
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def all_fit_storage(tensors: Sequence[Tensor]) -> bool:
    """Tell whether each tensor's storage has room for it; `resize_` of a storage may shrink it."""
    begin_storage = all(map(is_contiguous, tensors)) and not any(map(storage_offset, tensors))
    if begin_storage:  # the usual case, tested first
        return all(
            map(le, map(_nbytes, tensors), map(_storage_bytes, map(untyped_storage, tensors)))
        )
    return all(map(fits_storage, tensors))


def fits_storage(tensor: Tensor) -> bool:
    """Tell whether a tensor's storage has room for it, and for the scales of a quantized tensor."""
    is_quantized = isinstance(tensor, QuantizedTensor)
    bytes_ = tensor.nbytes if is_quantized else span(tensor) * tensor.element_size()
    offset = tensor.storage_offset() * tensor.element_size()
    return not bytes_ or offset + bytes_ <= tensor.untyped_storage().nbytes()

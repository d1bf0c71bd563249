"""Check the memory layout, shape and device of a bucket's streams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import torch
from torch import Tensor

from optgen.runtime.tensors.layout import is_row_major, streams_to_copy

StreamTensors = list[list[Tensor]]
_dtype = attrgetter("dtype")


class StreamLayout:
    """Memory layout of a stream's tensors, which every step compares.

    An assignment to `.data` can change the layout of a tensor that stays the same object. If
    `compares_shapes` is true, shapes are compared, and not only the numbers of elements.
    """

    def __init__(self, tensors: Sequence[Tensor], compares_shapes: bool = False) -> None:
        self._numels = list(map(Tensor.numel, tensors))
        self._shapes = [tensor.shape for tensor in tensors] if compares_shapes else []
        self._dtypes_and_devices = dtypes_and_devices(tensors)
        self._is_plain = _are_plain(tensors)
        self._layouts = [] if self._is_plain else _strided_layouts(tensors)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Tell whether tensors have the same layout, so that the kernels can take them."""
        return (
            (_are_plain(tensors) if self._is_plain else _strided_layouts(tensors) == self._layouts)
            and list(map(Tensor.numel, tensors)) == self._numels
            and dtypes_and_devices(tensors) == self._dtypes_and_devices
            and (not self._shapes or [tensor.shape for tensor in tensors] == self._shapes)
        )


def dtypes_and_devices(tensors: Sequence[Tensor]) -> tuple[set[torch.dtype], set[int]]:
    """Return the dtypes and the device indices of a stream's tensors; in a bucket, one of each."""
    return set(map(_dtype, tensors)), set(map(Tensor.get_device, tensors))


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    return all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_neg, tensors))


def _strided_layouts(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, tuple[int, ...], bool]]:
    return [(tensor.shape, tensor.stride(), tensor.is_neg()) for tensor in tensors]


def check_shapes(streams: StreamTensors) -> None:
    """Raise a `RuntimeError` if a stream has another shape than its parameter.

    A kernel reads as many elements of every stream as the parameter has.
    """
    shapes = [tensor.shape for tensor in streams[0]]
    for stream in streams[1:]:
        for tensor, shape in zip(stream, shapes, strict=bool(stream)):
            if tensor.shape != shape:
                raise RuntimeError(
                    f"a parameter of shape {list(shape)} has a gradient or a state of shape "
                    f"{list(tensor.shape)}; clear the optimizer's state for the parameter"
                )


def check_devices(streams: StreamTensors, device: torch.device) -> None:
    """Raise a `RuntimeError` for a tensor on another device, whose address a kernel cannot read."""
    for tensor in chain.from_iterable(streams):
        if tensor.device != device:
            raise RuntimeError(
                f"a parameter on {device} has a gradient or a state on {tensor.device}; move the "
                "tensor to that device, or clear the optimizer's state for the parameter"
            )


def tensors_to_copy(streams: StreamTensors, needs_row_major: bool) -> list[tuple[int, int]]:
    """Return the pairs (stream index, parameter index) of the tensors that must be copied.

    A parameter comes before its gradient and states, whose copies take its layout. If
    `needs_row_major`, the kernels take only row-major tensors.
    """
    if all(map(_are_plain, streams)):
        return []
    if needs_row_major:
        return [
            (stream_index, index)
            for stream_index, stream in enumerate(streams)
            for index, tensor in enumerate(stream)
            if not is_row_major(tensor)
        ]
    present = [stream_index for stream_index, stream in enumerate(streams) if stream]
    tensors_by_param = zip(*(streams[stream_index] for stream_index in present), strict=True)
    return [
        (present[position], index)
        for index, tensors in enumerate(tensors_by_param)
        for position in streams_to_copy(tensors)
    ]

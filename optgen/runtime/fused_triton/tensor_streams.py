"""The streams of a bucket: how their tensors lie in memory, and what must hold of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import torch
from torch import Tensor

from optgen.runtime.tensors.layout import is_row_major, streams_to_copy

Streams = list[list[Tensor]]
_dtype = attrgetter("dtype")


class Layout:
    """How the tensors of a stream lie in memory, to see at every step that they still do.

    Assigning to `.data` changes any of it under an object that stays the same.
    """

    def __init__(self, tensors: Sequence[Tensor], shaped: bool = False) -> None:
        self._numels = list(map(Tensor.numel, tensors))
        self._shapes = [tensor.shape for tensor in tensors] if shaped else []
        self._kinds = kinds_of(tensors)
        self._plain = _are_plain(tensors)
        self._walks = [] if self._plain else _walks(tensors)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the kernels may walk these tensors as they walked the first ones."""
        return (
            (_are_plain(tensors) if self._plain else _walks(tensors) == self._walks)
            and list(map(Tensor.numel, tensors)) == self._numels
            and kinds_of(tensors) == self._kinds
            and (not self._shapes or [tensor.shape for tensor in tensors] == self._shapes)
        )


def kinds_of(tensors: Sequence[Tensor]) -> tuple[set[torch.dtype], set[int]]:
    """The types of a stream, and the numbers of its devices; a bucket has one of each."""
    return set(map(_dtype, tensors)), set(map(Tensor.get_device, tensors))


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    return all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_neg, tensors))


def _walks(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, tuple[int, ...], bool]]:
    return [(tensor.shape, tensor.stride(), tensor.is_neg()) for tensor in tensors]


def check_shapes(streams: Streams) -> None:
    """A kernel goes as far as the parameter in every stream: each must have its shape."""
    shapes = [tensor.shape for tensor in streams[0]]
    for stream in streams[1:]:
        for tensor, shape in zip(stream, shapes, strict=bool(stream)):
            if tensor.shape != shape:
                raise RuntimeError(
                    f"a parameter of shape {list(shape)} has a gradient or a state of shape "
                    f"{list(tensor.shape)}; clear the optimizer's state for it"
                )


def check_devices(streams: Streams, device: torch.device) -> None:
    """A kernel reads every address as one of its own device."""
    for tensor in chain.from_iterable(streams):
        if tensor.device != device:
            raise RuntimeError(
                f"a parameter on {device} has a gradient or a state on {tensor.device}; bring it "
                "there, or clear the optimizer's state for the parameter"
            )


def copied(streams: Streams, in_order: bool) -> list[tuple[int, int]]:
    """(stream, tensor) of everything that needs a copy, a parameter before its other streams."""
    if all(map(_are_plain, streams)):
        return []
    if in_order:
        return [
            (k, i) for k, s in enumerate(streams) for i, t in enumerate(s) if not is_row_major(t)
        ]
    present = [k for k, stream in enumerate(streams) if stream]
    parts = zip(*(streams[k] for k in present), strict=True)
    return [(present[k], i) for i, tensors in enumerate(parts) for k in streams_to_copy(tensors)]

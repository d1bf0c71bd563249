"""A bucket: the tensors of one device whose streams have equal types, updated by one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.fused_triton.table import Staging, Table
from optgen.runtime.layout import copies, copy_of

_dtype = attrgetter("dtype")

TAIL = 256
"""Elements a trip where a block is short or its streams are not aligned."""

Streams = list[list[Tensor]]


class Key(NamedTuple):
    """What the tensors of a bucket share. A state that the group does not keep has type None."""

    device: torch.device
    types: tuple[torch.dtype | None, ...]  # parameter, gradient, states of the parameter's shape
    scalar_types: tuple[torch.dtype, ...]  # step, scalar states


class Share(NamedTuple):
    """The tensors of one group that belong to a bucket: which group, which of its tensors."""

    group: int
    indices: tuple[int, ...]

    def pick(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Those tensors of a list that runs over the group's."""
        if not tensors or len(self.indices) == len(tensors):
            return tensors
        if len(self.indices) == 1:
            return (tensors[self.indices[0]],)
        picked: tuple[Tensor, ...] = itemgetter(*self.indices)(tensors)
        return picked


class Layout:
    """How the tensors of a stream lie in memory, to see at every step that they still do.

    Assigning to `.data` changes any of it under an object that stays the same.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._numels = list(map(Tensor.numel, tensors))
        self._kinds = _kinds(tensors)
        self._plain = _are_plain(tensors)
        self._walks = [] if self._plain else _walks(tensors)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the kernels may walk these tensors as they walked the first ones."""
        return (
            (_are_plain(tensors) if self._plain else _walks(tensors) == self._walks)
            and list(map(Tensor.numel, tensors)) == self._numels
            and _kinds(tensors) == self._kinds
        )


def _kinds(tensors: Sequence[Tensor]) -> tuple[set[torch.dtype], set[int]]:
    """The types of a stream, and the numbers of its devices; a bucket has one of each."""
    return set(map(_dtype, tensors)), set(map(Tensor.get_device, tensors))


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    return all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_neg, tensors))


def _walks(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, tuple[int, ...], bool]]:
    return [(tensor.shape, tensor.stride(), tensor.is_neg()) for tensor in tensors]


class Bucket:
    """A table, and all else that a generated `update` hands to its kernels."""

    loss_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(
        self,
        key: Key,
        shares: list[Share],
        states: Sequence[str],
        streams: Streams,
        fresh: list[list[bool]],
        hypers: Tensor,
        staging: Staging | None,
    ) -> None:
        _check_shapes(streams[: len(key.types)])
        self.key, self.shares, self.hypers = key, shares, hypers
        self._states = states
        self._copied = _copied(streams[: len(key.types)])
        self._layouts = list(map(Layout, streams[: len(key.types)]))
        self._scalar_kinds = list(map(_kinds, streams[len(key.types) :]))
        self._scalars: Tensor | None = None
        amd = torch.version.hip is not None
        self.options = options(key.types, amd)
        self.prologue_options = {"num_warps": 1} | exact(amd)
        self._table = Table(
            list(map(Tensor.numel, streams[0])),
            chain.from_iterable([share.group] * len(share.indices) for share in shares),
            fresh,
            len(streams),
            self.options["BLOCK"],
            key.device,
            staging,
        )
        self.tensors, self.blocks = self._table.tensors, self._table.blocks
        self.rows, self.block_tensor = self._table.rows, self._table.block_tensor
        self.types = [_triton_type(t or key.types[0]) for t in key.types]
        self.scalar_types = [_triton_type(t) for t in key.scalar_types]

    def has(self, state: str) -> bool:
        """Whether these tensors keep the state of this key."""
        return self.key.types[2 + self._states.index(state)] is not None

    def scalars(self, width: int) -> Tensor:
        """Room for `width` numbers a tensor, in the type the kernel computes in."""
        if self._scalars is None:
            dtype = torch.float64 if self.key.types[0] == torch.float64 else torch.float32
            self._scalars = torch.empty(self.tensors, width, dtype=dtype, device=self.key.device)
        return self._scalars

    def fits(self, streams: Streams) -> bool:
        """Whether these tensors have the types, sizes and layouts that the bucket was made for."""
        scalars = streams[len(self._layouts) :]
        return (
            all(map(Layout.fits, self._layouts, streams))
            and list(map(_kinds, scalars)) == self._scalar_kinds
        )

    def run(self, update: Callable[[Bucket], None], streams: Streams) -> None:
        """Update the tensors; where a parameter's streams are laid out unlike, through copies."""
        swapped = []
        for stream, i in self._copied:
            original = streams[stream][i]
            streams[stream][i] = copy = copy_of(original, streams[0][i])
            if stream != 1 or self.loss_scale is not None:  # a gradient is written when unscaled
                swapped.append((original, copy))
        self._table.point(streams)
        with _on(self.key.device):
            update(self)
        for original, copy in swapped:
            original.copy_(copy)


def _check_shapes(streams: Streams) -> None:
    """A kernel goes as far as the parameter in every stream: each must have its shape."""
    shapes = [tensor.shape for tensor in streams[0]]
    for stream in streams[1:]:
        for tensor, shape in zip(stream, shapes, strict=bool(stream)):
            if tensor.shape != shape:
                raise RuntimeError(
                    f"a parameter of shape {list(shape)} has a gradient or a state of shape "
                    f"{list(tensor.shape)}; clear the optimizer's state for it"
                )


def _copied(streams: Streams) -> list[tuple[int, int]]:
    """(stream, tensor) of everything that needs a copy, a parameter before its other streams."""
    if all(map(_are_plain, streams)):
        return []
    present = [k for k, stream in enumerate(streams) if stream]
    parts = zip(*(streams[k] for k in present), strict=True)
    return [(present[k], i) for i, tensors in enumerate(parts) for k in copies(tensors)]


def options(types: Sequence[torch.dtype | None], amd: bool) -> dict[str, Any]:
    """How a kernel walks these types, and how it is compiled."""
    vector = 16 // max(t.itemsize for t in types if t is not None)  # elements an access
    wide = amd and vector == 8  # a wave of 64 lanes needs more elements for 16 bytes each
    block = 512 if types[0] == torch.float64 else 2048 if wide else 1024
    walk = {"VECTOR": vector, "BLOCK": block, "TAIL": TAIL, "num_warps": 4}
    # Told that it may use registers, NVIDIA's assembler no longer spills some for one block more.
    return walk | exact(amd) | ({} if amd else {"maxnreg": 128})


def exact(amd: bool) -> dict[str, Any]:
    """Denormal numbers are numbers: NVIDIA's functions flush them unless told not to."""
    return {} if amd else {"enable_reflect_ftz": False}


def _triton_type(dtype: torch.dtype | None) -> Any:
    from triton import language

    return getattr(language, str(dtype).removeprefix("torch."))


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

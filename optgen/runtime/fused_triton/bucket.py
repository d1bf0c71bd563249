"""A bucket: the tensors of one device and equal types of streams; a phase launches them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, islice
from math import prod
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.fused_triton.interpreter import as_devices_do
from optgen.runtime.fused_triton.table import Staging, Table
from optgen.runtime.fused_triton.tensor_streams import (
    Layout,
    Streams,
    check_devices,
    check_shapes,
    copied,
    kinds_of,
)
from optgen.runtime.fused_triton.workspace import Needs, Shape, Tile, Workspace
from optgen.runtime.tensors.layout import copy_like

_dtype = attrgetter("dtype")

TAIL = 256
"""Elements a trip where a block is short or its streams are not aligned."""

Arguments = Callable[[Mapping[str, Any]], tuple[Any, ...]]


class Key(NamedTuple):
    """What the tensors of a bucket share. A state that the group does not keep has type None."""

    device: torch.device
    types: tuple[torch.dtype | None, ...]  # parameter, gradient, states that are no scalars
    scalar_types: tuple[torch.dtype, ...]  # step, scalar states
    facts: tuple[bool, ...] = ()  # those of the parameter's shape that the rule asks for


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


class Bucket:
    """A table, and all else that a generated `update` hands to its kernels."""

    loss_scale: Tensor | None = None
    found_inf: Tensor | None = None
    _params: Sequence[Tensor] = ()  # of the step at hand, as are these
    _groups: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self,
        key: Key,
        shares: list[Share],
        states: Mapping[str, str],
        streams: Streams,
        fresh: list[list[bool]],
        hypers: Tensor,
        staging: Staging | None,
        needs: Needs | None = None,
        kept: frozenset[int] = frozenset((1,)),
    ) -> None:
        """`kept` are the streams that kernels only read, unless they unscale gradients."""
        self.key, self.shares, self.hypers = key, shares, hypers
        self._states, self._kept = list(states), kept
        tensors = streams[: len(key.types)]
        like = [s for s, k in zip(tensors[2:], states.values(), strict=True) if k == "like"]
        check_shapes([*tensors[:2], *like])
        check_devices(tensors, key.device)
        self._in_order = needs is not None and needs.in_order
        self._copied = copied(tensors, self._in_order)
        self._layouts = [Layout(stream, self._in_order) for stream in tensors]
        self._scalar_kinds = list(map(kinds_of, streams[len(key.types) :]))
        self._scalars: Tensor | None = None
        self._locals: dict[str, list[Tensor]] = {}
        self._local_names = needs.locals if needs else ()
        self.types = [_triton_type(t or key.types[0]) for t in key.types]
        self.scalar_types = [_triton_type(t) for t in key.scalar_types]
        self._enter(streams, fresh, staging, needs)

    def _enter(
        self,
        streams: Streams,
        fresh: list[list[bool]],
        staging: Staging | None,
        needs: Needs | None,
    ) -> None:
        """Divide the tensors into blocks, and make the table and the memory that goes with it."""
        amd = torch.version.hip is not None
        shapes = list(map(Shape.of, streams[0])) if needs is not None and needs.by_matrix else []
        tiles = sorted({Tile.of(shape) for shape in shapes})
        self.options = options(self.key.types, amd, tiles)
        self.prologue_options = {"num_warps": 1} | exact(amd)
        counts = self._counts(streams[0], shapes)
        self._table = Table(
            list(map(Tensor.numel, streams[0])),
            counts,
            chain.from_iterable([share.group] * len(share.indices) for share in self.shares),
            fresh,
            len(streams),
            self.key.device,
            staging,
            extra=len(self._local_names),
        )
        self.tensors, self.blocks = self._table.tensors, self._table.blocks
        self.rows, self.block_tensor = self._table.rows, self._table.block_tensor
        self._workspace = None
        if needs is not None:
            compiled = exact(amd)
            self._workspace = Workspace(needs, streams[0], tiles, counts, compiled, staging)

    @property
    def workspace(self) -> Workspace:
        """The memory that the phases of the rule share."""
        assert self._workspace is not None
        return self._workspace

    @property
    def compute_dtype(self) -> torch.dtype:
        """What the kernels compute elements in."""
        return torch.float64 if self.key.types[0] == torch.float64 else torch.float32

    @property
    def compute_type(self) -> Any:
        """The same, as Triton calls it."""
        return _triton_type(self.compute_dtype)

    def _counts(self, params: Sequence[Tensor], shapes: Sequence[Shape]) -> list[int]:
        """The blocks of every parameter; where phases go by matrices, its tiles."""
        if shapes:
            return [prod(Tile.of(shape).counts(shape)) for shape in shapes]
        return [-(-param.numel() // self.options["BLOCK"]) for param in params]

    def has(self, state: str) -> bool:
        """Whether these tensors keep the state of this key."""
        return self.key.types[2 + self._states.index(state)] is not None

    def scalars(self, width: int) -> Tensor:
        """Room for `width` numbers a tensor, in the type the kernel computes in."""
        if self._scalars is None:
            self._scalars = torch.empty(
                self.tensors, width, dtype=self.compute_dtype, device=self.key.device
            )
        return self._scalars

    def fits(self, streams: Streams) -> bool:
        """Whether these tensors have the types, sizes and layouts that the bucket was made for."""
        scalars = streams[len(self._layouts) :]
        return (
            all(map(Layout.fits, self._layouts, streams))
            and list(map(kinds_of, scalars)) == self._scalar_kinds
        )

    def room(self, name: str) -> None:
        """Make room for a tensor that a sweep hands to a matrix word."""
        shapes = [param.shape for param in self._params]
        sizes = [-(-shape.numel() // 16) * 16 for shape in shapes]  # each begins at 16 bytes
        flat = torch.empty(sum(sizes), dtype=self.key.types[0], device=self.key.device)
        parts = zip(flat.split(sizes), shapes, strict=True)
        self._keep(name, [part[: shape.numel()].view(shape) for part, shape in parts])

    def call(
        self, word: Callable[..., list[Tensor]], source: str, target: str, arguments: Arguments
    ) -> None:
        """Apply a matrix word to what a sweep has stored, group by group."""
        given, made = iter(self._locals[source]), []
        for share, group in zip(self.shares, self._groups, strict=True):
            made += word(list(islice(given, len(share.indices))), *arguments(group))
        wide = self._params[0].dtype
        narrow = (t if t.dtype.itemsize <= wide.itemsize else t.to(wide) for t in made)
        self._keep(target, [tensor.contiguous() for tensor in narrow])

    def local_type(self, name: str) -> Any:
        """The type of a tensor that lives for a step, as Triton calls it."""
        return _triton_type(self._locals[name][0].dtype)

    def _keep(self, name: str, tensors: list[Tensor]) -> None:
        self._locals[name] = tensors
        self._table.point_extra(self._local_names.index(name), tensors)

    def run(
        self,
        update: Callable[[Bucket], None],
        streams: Streams,
        groups: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Update the tensors; where a parameter's streams are laid out unlike, through copies.

        `groups` are those of the shares.
        """
        swapped = []
        for stream, i in self._copied:
            original = streams[stream][i]
            streams[stream][i] = copy = self._copy_of(original, streams[0][i])
            if stream not in self._kept or (stream == 1 and self.loss_scale is not None):
                swapped.append((original, copy))
        self._table.point(streams)
        self._params, self._groups = streams[0], groups
        with _on(self.key.device):
            update(self)
        self._params, self._groups = (), ()
        self._locals.clear()
        for original, copy in swapped:
            original.copy_(copy)

    def _copy_of(self, tensor: Tensor, param: Tensor) -> Tensor:
        if self._in_order:
            return tensor.clone(memory_format=torch.contiguous_format)
        return copy_like(tensor, param)


def options(
    types: Sequence[torch.dtype | None], amd: bool, tiles: Sequence[Tile] = ()
) -> dict[str, Any]:
    """How a kernel walks these types, and how it is compiled."""
    vector = 16 // max(t.itemsize for t in types if t is not None)  # elements an access
    # Told that it may use registers, NVIDIA's assembler no longer spills some for one block more.
    compiled = exact(amd) | ({} if amd else {"maxnreg": 128})
    if tiles:
        warps = (4 if amd else 8) * (2 if types[0] == torch.float64 else 1)
        return {"VECTOR": vector, "TILES": tuple(map(tuple, tiles)), "num_warps": warps} | compiled
    wide = amd and vector == 8  # a wave of 64 lanes needs more elements for 16 bytes each
    block = 512 if types[0] == torch.float64 else 2048 if wide else 1024
    walk = {"VECTOR": vector, "BLOCK": block, "TAIL": TAIL, "num_warps": 4}
    return walk | compiled


def exact(amd: bool) -> dict[str, Any]:
    """Return the compiler's options for exact arithmetic.

    A product and a sum are rounded once; Triton 3.9 warns if that is not said. Denormal numbers
    stay: NVIDIA's functions flush them unless told not to.
    """
    return {"enable_fp_fusion": True} | ({} if amd else {"enable_reflect_ftz": False})


def _triton_type(dtype: torch.dtype | None) -> Any:
    from triton import language

    return getattr(language, str(dtype).removeprefix("torch."))


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device; on the CPU it is its interpreter that launches."""
    return torch.cuda.device(device) if device.type == "cuda" else as_devices_do()

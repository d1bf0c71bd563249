"""Parameters of which this process holds parts, in fused C++: it stops where others are needed.

The kernel is a library of its own. A step is a walk over all tensors: it goes on until sums over
whole parameters are needed, which the ranks then complete together, once for all tensors.
"""

import ctypes
from array import array
from collections.abc import Generator, Sequence
from ctypes import c_double, c_int, c_void_p
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu import threads
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.matrix_calls import Call
from optgen.runtime.fused_cpu.table import Table
from optgen.runtime.protocols import Lowered
from optgen.runtime.sharded.all_reduce import Partial
from optgen.runtime.sharded.collectives import AXES, Collectives, place_of
from optgen.runtime.sharded.driver import Request, Update, run
from optgen.runtime.tensors.matrix_shape import cols, rows
from optgen.runtime.tensors.sharding import ShardedAxis

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


CONDITION = "OPTGEN_SHARDS"
"""Defined where a source is built for parts."""


class _Shards(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("of", "rank_groups", "counts", "numbers", "step")]


class Shards:
    """`Shards` of tensor_table.h: every tensor's global shape, and ranks with its other shards."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._partners: dict[tuple[ProcessGroup, ...], int] = {}
        self._rows = array("q")
        for batch in batches:
            known: dict[torch.Size, list[int]] = {}
            cuts = _cuts(batch)
            for member in batch.members:
                if member.shape not in known:
                    known[member.shape] = self._row(member, cuts)
                self._rows.extend(known[member.shape])
        self._counts = array("q", bytes(8 * 2 * len(self._partners)))
        self.struct = _Shards(
            self._rows.buffer_info()[0], len(self._partners), self._counts.buffer_info()[0]
        )

    def _row(self, member: Tensor, cuts: Sequence[ShardedAxis]) -> list[int]:
        axes = {cut: 1 << place_of(cut.axis, member.dim()) for cut in cuts}
        every = 0
        for bit in axes.values():
            every |= bit
        partners = []
        for taken in range(1 << len(AXES)):  # the axes of a sum as bits, as tensor_table.h has them
            groups = tuple(cut.group for cut in cuts if axes[cut] & taken)
            number = self._partners.setdefault(groups, len(self._partners)) if groups else -1
            partners.append(number)
        return [member.numel(), rows(member), cols(member), every, *partners]

    def partials(self) -> list[Partial]:
        """The sums that a walk waits for, where it has left them: as many as it has partners."""
        bounds = list(accumulate(self._counts, initial=0))
        held = (c_double * bounds[-1]).from_address(self.struct.numbers)
        numbers = torch.frombuffer(held, dtype=torch.float64)
        wanted = ((groups, largest) for groups in self._partners for largest in (False, True))
        return [
            Partial(numbers[first:end], groups, largest)
            for (first, end), (groups, largest) in zip(pairwise(bounds), wanted, strict=True)
            if end > first
        ]


def _cuts(batch: Batch) -> tuple[ShardedAxis, ...]:
    where = batch.dispatch_key.sharding
    return where.cuts() if where else ()


class ShardKernel(Kernel):
    """A compiled rule whose steps wait for other processes."""

    is_sharded = True

    def __init__(
        self, owner: Lowered, library: Path, types: int, source: str, swept_by: Path | None
    ) -> None:
        super().__init__(owner, library, types, source, swept_by)
        self._advance: Any = None
        if self._has("optgen_advance"):  # else it asks for the sizes of a parameter only
            self._advance, self._end = self._library.optgen_advance, self._library.optgen_end
            self._advance.argtypes, self._advance.restype = (c_void_p,), c_int
            self._end.argtypes, self._end.restype = (c_void_p,), None

    def run(self, table: Table, optimizer: Lowered) -> None:
        """Update all tensors of a table, together with the processes that have the rest of them."""
        run([self.update(table, optimizer)])

    def update(self, table: Table, optimizer: Lowered) -> Update:
        """The same, for a driver that answers what it asks for."""
        table.set_scale(optimizer)
        shards = Shards(table.batches)
        table.struct.shards = ctypes.addressof(shards.struct)
        for position, part in enumerate(self.parts):
            if position:
                yield from self._call_together(self.calls[position - 1], table)
                table.struct.grad_scale = None  # the first part has unscaled the gradients
            if part is None:
                continue
            part(ctypes.addressof(table.struct), ctypes.addressof(threads.current()))
            if self._advance:
                yield from self._walk(shards)

    def _walk(self, shards: Shards) -> Update:
        walk = shards.struct.step
        try:
            while self._advance(walk):
                yield shards.partials()
        finally:
            self._end(walk)

    def _call_together(
        self, call: Call, table: Table
    ) -> Generator[Request, list[list[Tensor]], None]:
        """Do a matrix word on whole matrices, each on one of the ranks that hold its parts."""
        source, target = self.streams_of(call)
        alike = _alike(call, table)
        splits = [_split(table.batches[index], places[0]) for index, places in alike]
        held = [[table.held[index][source][place] for place in places] for index, places in alike]
        gathered = yield [split.gather(each) for split, each in zip(splits, held, strict=True)]
        made = [
            call(table.batches[index].group, matrices)
            for (index, _), matrices in zip(alike, gathered, strict=True)
        ]
        parts = yield [split.scatter(each) for split, each in zip(splits, made, strict=True)]
        results: list[dict[int, Tensor]] = [{} for _ in table.batches]
        for (index, places), tensors in zip(alike, parts, strict=True):
            results[index].update(zip(places, tensors, strict=True))
        for index, result in enumerate(results):
            table.put_made(target, index, result, source)


def _alike(call: Call, table: Table) -> list[tuple[int, list[int]]]:
    """What a matrix word takes: the places of parameters of one shape and type, work by work."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for index, (batch, columns) in enumerate(zip(table.batches, table.held, strict=True)):
        for place in call.suited(columns[0]):
            member = batch.members[place]
            found.setdefault((index, member.shape, member.dtype), []).append(place)
    return [(key[0], places) for key, places in found.items()]


def _split(batch: Batch, place: int) -> Collectives:
    return Collectives(batch.members[place], _cuts(batch))

"""Run the fused C++ kernel whose steps suspend.

The kernel is a library of its own. A step of sharded parameters suspends before it reads sums over
whole parameters, and the ranks complete these sums with one collective for all tensors. A step of a
rule that reduces over several parameters always suspends, so such a rule has no other kernel.
"""

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from ctypes import c_double, c_void_p
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel import (
    Kernel,
    ShardsStruct,
    Table,
    matrix_op_results,
)
from optgen.runtime.matrix_ops import cols, rows
from optgen.runtime.rule import HasLowerings, MatrixCall
from optgen.runtime.sharded.driver import AXES, Collectives, Update, index_in_axes, run
from optgen.runtime.sharded.reductions import PartialReduction, WideReduction
from optgen.runtime.tensors.sharding import ShardedAxis
from optgen.runtime.torch_private import thread_pool

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


MACRO = "OPTGEN_SUSPENDS"
"""Macro that is defined when a source is compiled for steps that suspend."""


_WIDE_KINDS: tuple[tuple[Literal["group", "all"], bool], ...] = (
    ("group", False),
    ("group", True),
    ("all", False),
    ("all", True),
)
"""Kinds of reductions over parameters, in the order of rule_tables.h.

Each kind is the scope of the reduction, and whether the reduction is a maximum.
"""


class Shards:
    """`Shards` of tensor_table.h: for each tensor, its whole shape and the ranks of its shards."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._rank_groups: dict[tuple[ProcessGroup, ...], int] = {}
        self._shards = array("q")  # `Shard` of tensor_table.h, for each tensor
        for batch in batches:
            fields_by_shape: dict[torch.Size, list[int]] = {}
            sharded_axes = _sharded_axes(batch)
            for param in batch.seen_params:
                if param.shape not in fields_by_shape:
                    fields_by_shape[param.shape] = self._shard_fields(param, sharded_axes)
                self._shards.extend(fields_by_shape[param.shape])
        self._counts = array("q", bytes(8 * (2 * len(self._rank_groups) + len(_WIDE_KINDS))))
        self.struct = ShardsStruct(
            self._shards.buffer_info()[0], len(self._rank_groups), self._counts.buffer_info()[0]
        )

    def _shard_fields(self, seen: Tensor, sharded_axes: Sequence[ShardedAxis]) -> list[int]:
        """Return the fields of `Shard` for a parameter in the shape that its rule sees."""
        bit_of_axis = {axis: 1 << index_in_axes(axis.dim, seen.dim()) for axis in sharded_axes}
        sharded_bits = 0
        for bit in bit_of_axis.values():
            sharded_bits |= bit
        rank_groups = []
        for summed_bits in range(1 << len(AXES)):  # every set of axes that a sum may go over
            groups = tuple(axis.group for axis in sharded_axes if bit_of_axis[axis] & summed_bits)
            rank_group = (
                self._rank_groups.setdefault(groups, len(self._rank_groups)) if groups else -1
            )
            rank_groups.append(rank_group)
        return [seen.numel(), rows(seen), cols(seen), sharded_bits, *rank_groups]

    def incomplete_reductions(self) -> list[PartialReduction] | WideReduction:
        """Return the reductions that a suspended step waits for; their tensors view kernel memory.

        The step asks for a reduction over parameters only when no reduction over shards is left.
        """
        bounds = list(accumulate(self._counts, initial=0))
        memory = (c_double * bounds[-1]).from_address(self.struct.numbers)
        numbers = torch.frombuffer(memory, dtype=torch.float64)
        views = [numbers[first:end] for first, end in pairwise(bounds)]
        by_kind = zip(views[-len(_WIDE_KINDS) :], _WIDE_KINDS, strict=True)
        wide_reductions = [(view, kind) for view, kind in by_kind if len(view)]
        if wide_reductions:
            [(view, (over, largest))] = wide_reductions  # a step waits for one kind at a time
            return WideReduction(view, over, largest, view.copy_)
        kinds = ((groups, largest) for groups in self._rank_groups for largest in (False, True))
        return [
            PartialReduction(view, groups, largest)
            for view, (groups, largest) in zip(views, kinds, strict=False)
            if len(view)
        ]


def _sharded_axes(batch: Batch) -> tuple[ShardedAxis, ...]:
    sharding = batch.dispatch_key.sharding
    return sharding.sharded_axes() if sharding else ()


class SuspendingKernel(Kernel):
    """Compiled rule whose steps wait for other ranks, or for the other parameters."""

    suspends = True

    def run(self, table: Table, optimizer: HasLowerings) -> None:
        """Update all tensors of a table, together with the ranks that hold their other shards."""
        table.set_grad_scale(optimizer)
        run([self.update(table)])

    def update(self, table: Table) -> Update:
        """Return an update of a table that yields requests to the driver."""
        shards = Shards(table.batches)
        table.struct.shards = ctypes.addressof(shards.struct)
        for position, segment in enumerate(self.segments):
            if position:
                self._call_sharded(self.matrix_calls[position - 1], table)
                table.struct.grad_scale = None  # the first segment has unscaled the gradients
            if segment is None:
                continue
            segment(ctypes.addressof(table.struct), ctypes.addressof(thread_pool()))
            if self._exports("optgen_advance"):  # an elementwise kernel never suspends
                yield from self._run_step(shards)

    def _run_step(self, shards: Shards) -> Update:
        """Resume a step until it ends; yield the reductions that it waits for."""
        step = c_void_p(shards.struct.step)
        try:
            while self._library.optgen_advance(step):
                yield shards.incomplete_reductions()
        finally:
            self._library.optgen_end(step)

    def _call_sharded(self, call: MatrixCall, table: Table) -> None:
        """Apply a matrix op to whole matrices, each on one of the ranks that hold its shards.

        Some matrices travel while others are computed with.
        """
        source, target = self.streams_of(call)
        results: list[dict[int, Tensor]] = [{} for _ in table.batches]
        calls: list[Update] = []
        for index, param_indices in _group_by_shape(call, table):
            batch = table.batches[index]
            sharded_axes, seen = _sharded_axes(batch), batch.seen_params[param_indices[0]]
            shards = {each: table.columns[index][source][each] for each in param_indices}
            length = Collectives(seen, sharded_axes).round_length(list(shards.values()))
            for start in range(0, len(param_indices), length):
                part = {each: shards[each] for each in param_indices[start : start + length]}
                collectives = Collectives(seen, sharded_axes)
                calls.append(_call_on_owners(call, batch, collectives, part, results[index]))
        run(calls)
        for index, result in enumerate(results):
            table.set_results(target, index, result, source)


def _call_on_owners(
    call: MatrixCall,
    batch: Batch,
    collectives: Collectives,
    shards: Mapping[int, Tensor],
    results: dict[int, Tensor],
) -> Update:
    """Apply a matrix op to matrices of one shape; add shards of the results by the same indices."""
    whole = yield collectives.gather(list(shards.values()))
    scattered = yield collectives.scatter(matrix_op_results(call, batch, whole))
    results.update(zip(shards, scattered, strict=True))


def _group_by_shape(call: MatrixCall, table: Table) -> list[tuple[int, list[int]]]:
    """Group the operands of a matrix op by batch, shape and dtype.

    Return for each group the index of its batch, and the indices of the operands in that batch.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, (batch, columns) in enumerate(zip(table.batches, table.columns, strict=True)):
        for param_index in call.selected_indices(columns[0]):
            seen = batch.seen_params[param_index]
            groups.setdefault((index, seen.shape, seen.dtype), []).append(param_index)
    return [(key[0], param_indices) for key, param_indices in groups.items()]

"""List the tensors that a launch plan takes, as the C++ reader compares them and finds them.

A plan launches its kernels for tensors of certain dtypes and sizes. Only their addresses may differ
in a later step. The reader knows a tensor by its index among all parameters of an optimizer, or
in the list of a function; a bucket by its place in the bucket.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_triton.bucket import Bucket
from optgen.runtime.fused_triton.launch_plan import LaunchPlan
from optgen.runtime.fused_triton.tile_shape import Shape
from optgen.runtime.reader.streams import SHAPE_SIZE, TableArrays, shifted_to_stream
from optgen.runtime.reader.tensor_reader import Planned
from optgen.runtime.rule import Group, HasLowerings
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES


class PlannedTensors:
    """The tensors of a launch plan, and what of them is on the device.

    Args:
        plan: The plan.
        batches: The batches that it has just updated.
        group_indices: For each batch, the index of its group among the groups given to `launch`.
        params: All parameters that the reader reads.
        columns: The columns that the reader fills.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        batches: Sequence[Batch],
        group_indices: Sequence[int],
        params: Iterable[Tensor],
        columns: TableArrays,
    ) -> None:
        self.plan, self._columns, self._groups = plan, columns, group_indices
        index_of_param = {id(param): index for index, param in enumerate(params)}
        count = len(columns.elements)
        self._dtypes, self._elements = array("Q", bytes(8 * count)), array("q", bytes(8 * count))
        self._shapes = array("q", bytes(8 * len(columns.shape)))
        self._devices = array("i", bytes(4 * count))
        self._indices: list[tuple[int, ...]] = []  # for each bucket, those of its tensors
        for bucket in plan.buckets:
            self._enter(bucket, batches, index_of_param)
        self._is_whole = [indices == tuple(range(count)) for indices in self._indices]
        self._written_addresses = b""
        self._written_hypers = -1  # the number of changes of hyperparameters when they were written
        arrays = [self._dtypes, self._elements, self._shapes, self._devices]
        places = [memory.buffer_info()[0] if memory else 0 for memory in arrays]
        if not _has_several_devices():
            places[3] = 0
        self._struct = Planned(*places)
        self.address = ctypes.addressof(self._struct)

    def _enter(
        self, bucket: Bucket, batches: Sequence[Batch], index_of_param: Mapping[int, int]
    ) -> None:
        """Enter the tensors of a bucket into the columns that the reader compares."""
        dtypes = (*bucket.key.dtypes, *bucket.key.scalar_dtypes)
        codes = (DTYPE_CODES.get(dtype, 0) if dtype else 0 for dtype in dtypes)
        word = sum(shifted_to_stream(code, stream) for stream, code in enumerate(codes))
        places = [(batches[s.batch_index], i) for s in bucket.subsets for i in s.indices]
        indices = tuple(index_of_param[id(batch.members[i])] for batch, i in places)
        self._indices.append(indices)
        for index, (batch, i), numel in zip(indices, places, bucket.numels, strict=True):
            self._dtypes[index], self._elements[index] = word, numel
            self._devices[index] = bucket.key.device.index or 0
            if self._shapes:
                param = batch.params[i]
                row = array("q", [param.ndim, *Shape.of(param)])
                self._shapes[SHAPE_SIZE * index : SHAPE_SIZE * (index + 1)] = row

    def replaces(self, other: PlannedTensors) -> bool:
        """Tell whether another object stands for the same tensors of the same plan."""
        return self.plan is other.plan and self._dtypes == other._dtypes

    def launch(self, optimizer: HasLowerings, groups: Sequence[Group], hyper_changes: int) -> None:
        """Upload what has changed of the tensors that the reader has read, and launch the kernels.

        `hyper_changes` counts the changes of hyperparameters so far.
        """
        if self.plan.last_writer is not self:  # the device may hold what another has written
            self._written_addresses, self._written_hypers = b"", -1
            self.plan.last_writer = self
        self._write_addresses()
        batch_groups = [groups[index] for index in self._groups]
        if hyper_changes != self._written_hypers:
            self.plan.set_hypers(batch_groups)
            self._written_hypers = hyper_changes
        self.plan.repeat(optimizer, batch_groups)

    def _write_addresses(self) -> None:
        """Write the streams with a new address into the tables of the buckets."""
        addresses, count = self._columns.address.tobytes(), len(self._columns.elements)
        if addresses == self._written_addresses:
            return
        for bucket, indices, is_whole in zip(
            self.plan.buckets, self._indices, self._is_whole, strict=True
        ):
            rows = {}
            for stream, dtype in enumerate((*bucket.key.dtypes, *bucket.key.scalar_dtypes)):
                first, last = 8 * stream * count, 8 * (stream + 1) * count
                new = addresses[first:last]
                if dtype is None or new == self._written_addresses[first:last]:
                    continue
                row = array("q", new)
                rows[stream] = row if is_whole else _picked(row, indices)
            bucket.write_addresses(rows)
        self._written_addresses = addresses


def _picked(row: array[int], indices: tuple[int, ...]) -> array[int]:
    """Return the entries at these indices."""
    if len(indices) == 1:
        return array("q", [row[indices[0]]])
    picked: Any = itemgetter(*indices)(row)
    return array("q", picked)


def _has_several_devices() -> bool:
    return torch.cuda.is_available() and torch.cuda.device_count() > 1

"""Take a step again, or call a function again: the C++ reader finds the tensors, buckets launch.

The reader compares dtypes and sizes of all tensors with those of kept buckets, and fills in their
addresses. Only these may differ from the last step. The addresses that have changed are uploaded,
which mostly are none, and the kernels are launched. Nothing waits for the device.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from threading import Lock
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.hyperparameters import converter_of
from optgen.runtime.batch.step_context import current_forced_lowering
from optgen.runtime.fused_triton.bucket import Bucket
from optgen.runtime.fused_triton.launch_options import Shape
from optgen.runtime.fused_triton.sort_into_buckets import KeptBuckets, StepBuckets
from optgen.runtime.reader.object_layout import UnknownLayoutError
from optgen.runtime.reader.step_reader import StepReader, can_read
from optgen.runtime.reader.streams import (
    MAX_STREAMS,
    SHAPE_SIZE,
    RuleStreams,
    TableArrays,
    shifted_to_stream,
)
from optgen.runtime.reader.tensor_reader import Answer, Planned, Reader, reader
from optgen.runtime.rule import Group, HasLowerings, OptimizerLike
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import capturing, is_plain_class

_ALL_DTYPES = sum(1 << code for code in DTYPE_CODES.values())
_MAX_KEPT = 16
_DONE, _REFUSED = int(Answer.DONE), int(Answer.REFUSED)
_NOT_AS_PLANNED = int(Answer.NOT_AS_PLANNED)


class CachedLaunches:
    """The last buckets of an optimizer, and the reader that finds their tensors in each step."""

    zeroes_gradients = False
    skips_on_device = True

    def __init__(
        self, tensor_reader: Reader, optimizer: OptimizerLike, device: torch.device, by_shape: bool
    ) -> None:
        self.forced_lowering = current_forced_lowering()
        self._rule = optimizer.rule
        self._check_hypers = converter_of(optimizer).check
        self._busy = Lock()  # held during a step: two threads would overwrite the columns
        self._planned: list[PlannedTensors] = []  # the latest first
        self._hyper_changes = 0
        self._gathered_steps = 0  # since the last step that was repeated
        groups, streams = optimizer.param_groups, RuleStreams(optimizer.rule)
        count = sum(len(group["params"]) for group in groups)
        self._columns = TableArrays(len(streams.keys), count, by_shape)
        self._step = StepReader(
            tensor_reader,
            tensor_reader.request_for(self._columns, streams, _ALL_DTYPES, device),
            streams,
            groups,
            [_ALL_DTYPES] * len(groups),
            set(map(id, groups)),
            self._set_hypers,
            by_matrix=by_shape,
        )
        request = self._step.request
        request.zeroes_gradients = optimizer.rule.zero_grad
        # Gathered steps check step counts in the host's memory, too, and never wait for a device.
        request.has_step_count = self._rule.step is not None and device.type == "cpu"
        self._params = _params_of(groups)

    @classmethod
    def of(
        cls, optimizer: OptimizerLike, batches: Sequence[Batch], step_buckets: StepBuckets
    ) -> CachedLaunches | None:
        """Return the cached step after buckets have updated all batches.

        Return None if the next step must gather its tensors.
        """
        rule, groups, streams = optimizer.rule, optimizer.param_groups, RuleStreams(optimizer.rule)
        if rule.wide or rule.group_states or rule.step == "int" or not step_buckets.can_repeat:
            return None
        if len(streams.keys) > MAX_STREAMS or not can_read(streams, groups):
            return None
        if not all(map(_is_readable, batches)):
            return None
        tensor_reader = reader()
        if tensor_reader is None:
            return None
        device = batches[0].params[0].device
        try:
            return cls(tensor_reader, optimizer, device, step_buckets.needs_shapes)
        except (UnknownLayoutError, KeyError):
            return None

    def is_for(self, optimizer: OptimizerLike) -> bool:
        """Tell whether this object can repeat steps with the optimizer's groups as they are now."""
        groups = optimizer.param_groups
        return (
            self.forced_lowering == current_forced_lowering()
            and self._params == _params_of(groups)
            and self._read_groups(groups)
        )

    def add(
        self,
        step_buckets: StepBuckets,
        batches: Sequence[Batch],
        groups: Sequence[Group],
        kept_buckets: KeptBuckets,
    ) -> None:
        """Let buckets that have just updated these batches take later steps too.

        Buckets that are no longer kept are dropped here, too.
        """
        group_ids = list(map(id, groups))
        indices = [group_ids.index(batch.group_id) for batch in batches]
        params = chain.from_iterable(group["params"] for group in groups)
        planned = PlannedTensors(step_buckets, batches, indices, params, self._columns)
        kept = (each for each in self._planned if each.step_buckets in kept_buckets)
        others = [each for each in kept if not planned.replaces(each)]
        self._planned = [planned, *others[: _MAX_KEPT - 1]]

    def is_worth_keeping(self) -> bool:
        """Tell whether a gathered step should add its buckets.

        If none of the last steps could be repeated, only few of the next are tried.
        """
        self._gathered_steps += 1
        tries = self._gathered_steps
        return tries <= _MAX_KEPT or tries % _MAX_KEPT == 0

    def check(self, optimizer: OptimizerLike) -> bool:
        """Tell whether `run` would take the step; change nothing."""
        if capturing() or not self._busy.acquire(blocking=False):
            return False
        try:
            return self._read(optimizer, takes_step=False) is not None
        finally:
            self._busy.release()

    def run(self, optimizer: OptimizerLike) -> bool:
        """Take a step; or change nothing and return False if it must gather its tensors."""
        if capturing() or not self._busy.acquire(blocking=False):
            return False  # a graph needs tables of its own, or another thread takes a step
        try:
            planned = self._read(optimizer, takes_step=True)
            if planned is None:
                return False
            self._gathered_steps = 0
            planned.launch(optimizer, optimizer.param_groups, self._hyper_changes)
            return True
        finally:
            self._busy.release()

    def _read(self, optimizer: OptimizerLike, takes_step: bool) -> PlannedTensors | None:
        """Read the groups and tensors; return the planned tensors that take them, or None."""
        groups = optimizer.param_groups
        if not self._read_groups(groups):
            return None
        for planned in self._planned:
            if not planned.step_buckets.is_for_current_streams():
                continue
            self._step.request.planned = planned.address
            answer = self._step.read_tensors(groups, optimizer.state, takes_step)
            if answer == _DONE:
                return planned
            if answer != _NOT_AS_PLANNED:
                return None
        return None

    def _read_groups(self, groups: Sequence[Group]) -> bool:
        """Read the groups; return False if the step may need another lowering."""
        changed = self._step.read_groups(groups)
        self._hyper_changes += bool(changed)
        return changed is not None

    def _set_hypers(self, index: int, group: Group) -> None:
        """Check the hyperparameters of a group; buckets upload them later."""
        self._check_hypers(self._rule.hyper_values(group))


class CachedCalls:
    """The last buckets of a function for lists of one length.

    The functions between the matrix words of a rule are called for each shape of a matrix, mostly
    with new tensors as operands. So a cached call keeps those of several calls.

    Args:
        tensor_reader: The C++ reader.
        function: The function.
        length: The length of the lists.
        device: The device of the tensors; only its type matters.
        lock: Held during a call, and during any other use of the buckets.
    """

    def __init__(
        self,
        tensor_reader: Reader,
        function: HasLowerings,
        length: int,
        device: torch.device,
        lock: Lock,
    ) -> None:
        self._function, self._lock, self._call = ref(function), lock, tensor_reader.run_call
        self._forced_lowering = current_forced_lowering()
        streams = RuleStreams(function.rule)
        by_shape = not function.rule.elementwise
        self._columns = TableArrays(len(streams.keys), length, by_shape)
        self._buffers = tensor_reader.request_for(self._columns, streams, _ALL_DTYPES, device)
        self._buffers.request.by_matrix = by_shape
        self._list_addresses = array("q", bytes(8 * len(streams.keys)))
        self._buffers.request.lists = self._list_addresses.buffer_info()[0]
        self._planned: list[PlannedTensors] = []
        self._hypers: list[Any] = []
        self._hyper_changes = 0

    @classmethod
    def of(
        cls, function: HasLowerings, length: int, device: torch.device, lock: Lock
    ) -> CachedCalls | None:
        """Return an object without buckets; None if the next call must make a batch."""
        tensor_reader = reader()
        if tensor_reader is None or len(RuleStreams(function.rule).keys) > MAX_STREAMS:
            return None
        try:
            return cls(tensor_reader, function, length, device, lock)
        except (UnknownLayoutError, KeyError):
            return None

    def add(self, step_buckets: StepBuckets, batch: Batch) -> bool:
        """Let buckets that have updated a batch take later calls, if the reader can; tell so."""
        if not step_buckets.can_repeat or not _is_readable(batch):
            return False
        planned = PlannedTensors(step_buckets, [batch], [0], batch.members, self._columns)
        others = [each for each in self._planned if not planned.replaces(each)]
        self._planned = [planned, *others[: _MAX_KEPT - 1]]
        return True

    def run(self, lists: Sequence[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Update the lists; or change nothing and return False if a batch must be made."""
        if capturing() or current_forced_lowering() != self._forced_lowering:
            return False
        with self._lock:
            if len(set(map(id, lists[0]))) < len(lists[0]):
                return False  # the blocks of a kernel would update one tensor at the same time
            for stream, column in enumerate(lists):
                self._list_addresses[stream] = id(column)
            for planned in self._planned:
                if not planned.step_buckets.is_for_current_streams():
                    continue
                self._buffers.request.planned = planned.address
                answer = self._call(self._buffers.address)
                if answer == _DONE:
                    self._launch(planned, hypers)
                    return True
                if answer == _REFUSED:
                    return False
            return False

    def _launch(self, planned: PlannedTensors, hypers: dict[str, Any]) -> None:
        """Launch the kernels; upload hyperparameters unless they are the numbers of the last call.

        A tensor among them may have another value in every call.
        """
        function = self._function()
        assert function is not None  # it is running
        values = [hypers[name] for name in function.rule.hypers]
        are_numbers = all(isinstance(value, (int, float)) for value in values)
        if not (are_numbers and self._hypers and all(map(is_, values, self._hypers))):
            self._hyper_changes += 1
        self._hypers = values if are_numbers else []  # keeps no tensor alive
        planned.launch(function, [hypers], self._hyper_changes)


class PlannedTensors:
    """The tensors of a step's buckets, and what of them is on the device.

    The reader knows a tensor by its index among all parameters of an optimizer, or in the list of a
    function; a bucket by its place in the bucket.

    Args:
        step_buckets: The buckets.
        batches: The batches that it has just updated.
        group_indices: For each batch, the index of its group among the groups given to `launch`.
        params: All parameters that the reader reads.
        columns: The columns that the reader fills.
    """

    def __init__(
        self,
        step_buckets: StepBuckets,
        batches: Sequence[Batch],
        group_indices: Sequence[int],
        params: Iterable[Tensor],
        columns: TableArrays,
    ) -> None:
        self.step_buckets, self._columns, self._groups = step_buckets, columns, group_indices
        index_of_param = {id(param): index for index, param in enumerate(params)}
        count = len(columns.elements)
        self._dtypes, self._elements = array("Q", bytes(8 * count)), array("q", bytes(8 * count))
        self._shapes = array("q", bytes(8 * len(columns.shape)))
        self._devices = array("i", bytes(4 * count))
        self._indices: list[tuple[int, ...]] = []  # for each bucket, those of its tensors
        for bucket in step_buckets.buckets:
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
        """Tell whether another object stands for the same tensors of the same buckets."""
        return self.step_buckets is other.step_buckets and self._dtypes == other._dtypes

    def launch(self, optimizer: HasLowerings, groups: Sequence[Group], hyper_changes: int) -> None:
        """Upload what has changed of the tensors that the reader has read, and launch the kernels.

        `hyper_changes` counts the changes of hyperparameters so far.
        """
        if self.step_buckets.last_writer is not self:  # another may have written to the device
            self._written_addresses, self._written_hypers = b"", -1
            self.step_buckets.last_writer = self
        self._write_addresses()
        batch_groups = [groups[index] for index in self._groups]
        if hyper_changes != self._written_hypers:
            self.step_buckets.set_hypers(batch_groups)
            self._written_hypers = hyper_changes
        self.step_buckets.repeat(optimizer, batch_groups)

    def _write_addresses(self) -> None:
        """Write the streams with a new address into the tables of the buckets."""
        addresses, count = self._columns.address.tobytes(), len(self._columns.elements)
        if addresses == self._written_addresses:
            return
        for bucket, indices, is_whole in zip(
            self.step_buckets.buckets, self._indices, self._is_whole, strict=True
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


def _is_readable(batch: Batch) -> bool:
    """Tell whether the reader can read the tensors of a batch, which the buckets must not copy."""
    has_plain_members = all(is_plain_class(type(member)) for member in batch.members)
    return (
        has_plain_members
        and not (batch.view_copies or batch.has_codes)
        and not any(member.is_complex() for member in batch.members)
    )


def _params_of(groups: Sequence[Group]) -> array[int]:
    """Return the identities of all parameters."""
    return array("Q", (id(param) for group in groups for param in group["params"]))


def _picked(row: array[int], indices: tuple[int, ...]) -> array[int]:
    """Return the entries at these indices."""
    if len(indices) == 1:
        return array("q", [row[indices[0]]])
    picked: Any = itemgetter(*indices)(row)
    return array("q", picked)


def _has_several_devices() -> bool:
    return torch.cuda.is_available() and torch.cuda.device_count() > 1

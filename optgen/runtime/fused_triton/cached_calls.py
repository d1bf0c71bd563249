"""Call a function over lists again: the C++ reader finds the tensors, and a plan launches.

The functions between the matrix words of a rule are called for each shape of a matrix, mostly with
new tensors as operands. So a cached call keeps several plans, for lists of one length.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import is_
from threading import Lock
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_triton.cached_launches import ALL_DTYPES, is_readable
from optgen.runtime.fused_triton.launch_plan import LaunchPlan
from optgen.runtime.fused_triton.planned_tensors import PlannedTensors
from optgen.runtime.lowerings import current_forced_lowering
from optgen.runtime.reader.object_layout import UnknownLayoutError
from optgen.runtime.reader.streams import MAX_STREAMS, RuleStreams, TableArrays
from optgen.runtime.reader.tensor_reader import Answer, Reader, reader
from optgen.runtime.rule import HasLowerings
from optgen.runtime.torch_private import capturing

_MAX_PLANS = 16
_DONE, _REFUSED = int(Answer.DONE), int(Answer.REFUSED)


class CachedCalls:
    """The last plans of a function for lists of one length.

    Args:
        tensor_reader: The C++ reader.
        function: The function.
        length: The length of the lists.
        device: The device of the tensors; only its type matters.
        lock: Held during a call, and during any other use of the plans.
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
        self._columns = TableArrays(streams.stream_count, length)
        self._buffers = tensor_reader.request_for(self._columns, streams, ALL_DTYPES, device)
        self._list_addresses = array("q", bytes(8 * streams.stream_count))
        self._buffers.request.lists = self._list_addresses.buffer_info()[0]
        self._planned: list[PlannedTensors] = []
        self._hypers: list[Any] = []
        self._hyper_changes = 0

    @classmethod
    def of(
        cls, function: HasLowerings, length: int, device: torch.device, lock: Lock
    ) -> CachedCalls | None:
        """Return an object without plans; None if the next call must make a batch."""
        tensor_reader = reader()
        if tensor_reader is None or len(RuleStreams(function.rule).keys) > MAX_STREAMS:
            return None
        try:
            return cls(tensor_reader, function, length, device, lock)
        except (UnknownLayoutError, KeyError):
            return None

    def add(self, plan: LaunchPlan, batch: Batch) -> bool:
        """Let a plan that has just updated a batch take later calls, if the reader can; tell so."""
        if plan.needs_shapes or not plan.can_repeat or not is_readable(batch):
            return False
        planned = PlannedTensors(plan, [batch], [0], batch.members, self._columns)
        others = [each for each in self._planned if not planned.replaces(each)]
        self._planned = [planned, *others[: _MAX_PLANS - 1]]
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
                if not planned.plan.is_for_current_streams():
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

"""Run a cached step: the C++ reader fetches all tensors anew, and calls the kernel."""

import ctypes
from array import array
from collections.abc import Sequence
from operator import attrgetter
from threading import Lock
from typing import Any

import torch

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import OptimizerWithContext
from optgen.runtime.forced_lowering import current_forced_lowering
from optgen.runtime.fused_cpu.group_cells import GroupCells
from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.fused_cpu.kernel.table import ShardsStruct, Table
from optgen.runtime.protocols import Group, OptimizerLike
from optgen.runtime.reader.step_reader import StepReader, can_read, first_dtensor, specs_of
from optgen.runtime.reader.tensor_reader import Answer, Reader, reader
from optgen.runtime.state.create import CreatedState
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES

_dtype = attrgetter("dtype")
_DONE = int(Answer.DONE)  # compared in each step; an enum takes longer


class CachedDenseStep:
    """Cached plan of the last fused step; valid until groups, lowerings or dtypes change."""

    zeroes_gradients = True
    skips_on_device = False

    def __init__(
        self, kernel: Kernel, tensor_reader: Reader, groups: list[Group], updated_ids: set[int]
    ):
        self.forced_lowering = (
            current_forced_lowering()
        )  # the plan is valid for this choice of `use_lowering` only
        self._kernel = kernel
        self._busy = Lock()  # held during a step: two threads would overwrite the attributes below
        self._table = Table(kernel, sum(len(group["params"]) for group in groups), len(groups))
        for index, group in enumerate(groups):
            self._set_hypers(index, group)
        self._table.set_hypers()
        self._cells = GroupCells(kernel, self._table, groups) if kernel.rule.group_states else None
        self._unsharded = ShardsStruct()
        if kernel.suspends:
            self._table.struct.shards = ctypes.addressof(self._unsharded)
        buffers = tensor_reader.request_for(
            self._table, kernel, kernel.dtype_bits, torch.device("cpu")
        )
        self._step = StepReader(
            tensor_reader,
            buffers,
            kernel,
            groups,
            list(map(_dtype_bits, groups)),
            updated_ids,
            self._set_hypers,
            kernel.by_matrix,
        )
        request = self._step.request
        request.kernel, request.table = kernel.address, ctypes.addressof(self._table.struct)
        request.has_step_count = kernel.rule.step is not None
        request.zeroes_gradients = kernel.rule.zero_grad
        if self._cells:
            request.group_cells = self._cells.packed_codes

    def _set_hypers(self, index: int, group: Group) -> None:
        """Convert a group's hyperparameters for the table; raise an error for an invalid one."""
        values = self._kernel.rule.hyper_values(group)
        self._table.hypers[index] = self._kernel.pack_hypers(values)

    @classmethod
    def of(
        cls, kernel: Kernel, optimizer: OptimizerLike, updated_ids: set[int] | None
    ) -> "CachedDenseStep | None":
        """Return the plan of a step; None if the step must gather its tensors.

        `updated_ids` are the identities of the groups that the step updates; None if it updates
        only a part of some group.
        """
        tensor_reader = reader()
        if tensor_reader is None or updated_ids is None or kernel.matrix_calls:
            return None
        dtensor = first_dtensor(optimizer.param_groups)
        if dtensor is not None and not (
            kernel.rule.elementwise and tensor_reader.add_dtensor(dtensor)
        ):
            return None
        if not GroupCells.fits(kernel) or not can_read(kernel, optimizer.param_groups):
            return None
        cached = cls(kernel, tensor_reader, optimizer.param_groups, updated_ids)
        if dtensor is not None:
            cached._expect_specs(specs_of(optimizer, kernel.keys))
        return cached

    def _expect_specs(self, specs: list[list[Any]]) -> None:
        """Have the reader accept tensors with these sharding specs only, stream by stream.

        This object keeps the specs alive: otherwise a new spec could have the address of a freed
        spec.
        """
        self._specs = specs
        self._spec_addresses = array(
            "q", [0 if spec is None else id(spec) for column in specs for spec in column]
        )
        self._step.request.expected_specs = self._spec_addresses.buffer_info()[0]

    def begin(self, optimizer: OptimizerLike, created: list[CreatedState]) -> bool:
        """Take the first step; `created` lists the new states that the rule calls `fresh` on."""
        if not self._step.store_entries(optimizer.param_groups, optimizer.state):
            return False
        fresh, keys = self._table.fresh, self._kernel.rule.fresh
        index_by_id = self._step.param_indices(optimizer.state) if created else {}
        for values, key in created:
            fresh[index_by_id[id(values)]] |= 1 << keys.index(key)
        try:
            return self.run(optimizer)
        finally:
            fresh[:] = array("B", bytes(len(fresh)))

    def check(self, optimizer: OptimizerLike) -> bool:
        """Tell whether `run` would take the step; change nothing."""
        return self._read(optimizer, takes_step=False)

    def run(self, optimizer: OptimizerLike) -> bool:
        """Take a step; or change nothing and return False if it must gather its tensors."""
        return self._read(optimizer, takes_step=True)

    def _read(self, optimizer: OptimizerLike, takes_step: bool) -> bool:
        """Read the groups, then the tensors; return whether the step can be, or was, taken."""
        if not self._busy.acquire(blocking=False):
            return False  # another thread takes a step
        try:
            return self._read_all(optimizer, takes_step)
        finally:
            self._busy.release()

    def _read_all(self, optimizer: OptimizerLike, takes_step: bool) -> bool:
        groups = optimizer.param_groups
        changed = self._step.read_groups(groups)
        if changed is None:
            return False
        if changed:
            self._table.set_hypers()
        self._table.set_grad_scale(optimizer)
        if self._cells and not self._cells.load(groups):
            return False
        thread_pool = threads.current()
        self._step.request.threads = ctypes.addressof(thread_pool)
        if self._step.read_tensors(groups, optimizer.state, takes_step) != _DONE:
            return False
        if takes_step and self._cells:
            self._cells.store(groups)
        return True


def _dtype_bits(group: Group) -> int:
    """Return a bit for each dtype of a group's parameters; later steps may have no other dtype.

    With a tensor learning rate, a parameter of another dtype may need another lowering.
    """
    dtypes = set(map(_dtype, group["params"]))
    return sum(1 << code for dtype, code in DTYPE_CODES.items() if dtype in dtypes)


def updated_group_ids(optimizer: OptimizerWithContext, batches: Sequence[Batch]) -> set[int] | None:
    """Return the identities of the updated groups; None if only a part of some group was updated.

    If all parts of a group were updated, and they differ only in their shape predicates, the whole
    group was updated: the kernel evaluates shape predicates itself.
    """
    updated_ids = {id(batch.group) for batch in batches}  # of groups and of parts
    whole_ids = {id(group) for group in optimizer.param_groups} & updated_ids
    for group in optimizer.param_groups:
        batch = optimizer._context.batches.get(id(group))
        part_ids = {id(part.group) for part in batch.parts} if batch else set()
        if batch and part_ids and part_ids <= updated_ids:
            keys = {part.dispatch_key._replace(facts=()) for part in batch.parts}
            if len(keys) == 1:
                whole_ids.add(id(group))
                updated_ids -= part_ids
    return whole_ids if updated_ids <= whole_ids else None

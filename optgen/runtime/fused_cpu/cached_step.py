"""Repeat a step or a call: the C++ reader fetches all tensors anew, and calls the kernel.

`first_step.py` makes a cached step before there was a step, and takes the first one through it.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import attrgetter, is_
from threading import Lock
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from optgen.contract.quantization import CODE_MAPS
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.step_context import OptimizerWithContext, current_forced_lowering
from optgen.runtime.fused_cpu.kernel import (
    Kernel,
    KernelSignature,
    ShardsStruct,
    Table,
)
from optgen.runtime.reader.step_reader import StepReader, can_read, first_dtensor, specs_of
from optgen.runtime.reader.streams import shifted_to_stream
from optgen.runtime.reader.tensor_reader import Answer, Reader, reader
from optgen.runtime.rule import Group, OptimizerLike, State
from optgen.runtime.state.create import CreatedState
from optgen.runtime.tensors.layout import fits_storage
from optgen.runtime.tensors.quantized import QuantizedTensor, is_quantized
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import is_inference, thread_pool

_dtype = attrgetter("dtype")
_DONE = int(Answer.DONE)  # compared in each step; an enum takes longer


class CachedKernelStep:
    """Base of the cached steps that call a kernel with the table of the last step.

    A cached step is valid until groups, options, dtypes or the choice of `use_lowering` change.
    """

    skips_on_device = False

    def __init__(self, kernel: Kernel, groups: list[Group]) -> None:
        self.forced_lowering = current_forced_lowering()
        self._kernel = kernel
        self._busy = Lock()  # held during a step: two threads would overwrite the table
        self._table = Table(kernel, sum(len(group["params"]) for group in groups), len(groups))
        for index, group in enumerate(groups):
            self._set_hypers(index, group)
        self._table.set_hypers()

    def _set_hypers(self, index: int, group: Group) -> None:
        """Convert a group's hyperparameters for the table; raise an error for an invalid one."""
        values = self._kernel.rule.hyper_values(group)
        self._table.hypers[index] = self._kernel.pack_hypers(values)


class CachedDenseStep(CachedKernelStep):
    """A cached step whose tensors the C++ reader reads."""

    zeroes_gradients = True

    def __init__(
        self, kernel: Kernel, tensor_reader: Reader, groups: list[Group], updated_ids: set[int]
    ):
        super().__init__(kernel, groups)
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

    @classmethod
    def of(
        cls, kernel: Kernel, optimizer: OptimizerLike, updated_ids: set[int] | None
    ) -> CachedDenseStep | None:
        """Return the cached step of an optimizer; None if the step must gather its tensors.

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

    def expect_codes(self, optimizer: OptimizerLike) -> bool:
        """Have the reader accept the quantized states that the optimizer has now, and no others.

        Return False if the reader cannot accept one of them.
        """
        self._codes = ExpectedCodes(self._kernel, optimizer)
        self._step.request.expected_codes = self._codes.addresses.buffer_info()[0]
        self._step.request.code_formats = self._codes.formats.buffer_info()[0]
        return self._codes.are_complete

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
        self._step.request.threads = ctypes.addressof(thread_pool())
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


class CachedCall:
    """The last fused call, to be repeated; valid for lists of the same length."""

    def __init__(self, kernel: Kernel, tensor_reader: Reader, tensor_count: int) -> None:
        self._kernel, self._update = kernel, tensor_reader.run_call
        self._busy = Lock()  # held during a call: two threads would overwrite the attributes below
        self._table = Table(kernel, tensor_count, group_count=1)
        self._last_hypers: list[Any] = []
        self._list_addresses = array("q", bytes(8 * len(kernel.keys)))
        self._buffers = tensor_reader.request_for(
            self._table, kernel, kernel.dtype_bits, torch.device("cpu")
        )
        request = self._buffers.request
        request.by_matrix = kernel.by_matrix
        request.kernel, request.table = kernel.address, ctypes.addressof(self._table.struct)
        request.lists = self._list_addresses.buffer_info()[0]

    @classmethod
    def of(cls, kernel: Kernel, tensor_count: int) -> CachedCall | None:
        """Return a cached call for a number of tensors; None if there is no reader."""
        tensor_reader = reader()
        return None if tensor_reader is None else cls(kernel, tensor_reader, tensor_count)

    def run(self, lists: Sequence[list[Tensor]], hypers: dict[str, Any]) -> bool:
        """Update the lists; or change nothing and return False if a batch must be gathered."""
        pool = thread_pool()
        if pool.count > 1 and len(set(map(id, lists[0]))) < len(lists[0]):
            return False  # two threads would update one tensor
        if not self._busy.acquire(blocking=False):
            return False
        try:
            self._update_hypers([hypers[name] for name in self._kernel.rule.hypers])
            for stream, column in enumerate(lists):
                self._list_addresses[stream] = id(column)
            self._buffers.request.threads = ctypes.addressof(pool)
            return bool(self._update(self._buffers.address))
        finally:
            self._busy.release()

    def _update_hypers(self, hypers: list[Any]) -> None:
        """Copy hyperparameters into the table, unless they are the numbers of the last call."""
        last = self._last_hypers
        are_numbers = all(isinstance(hyper, (int, float)) for hyper in hypers)
        if not (are_numbers and len(last) == len(hypers) and all(map(is_, hypers, last))):
            self._table.hypers[0] = self._kernel.pack_hypers(hypers)
            self._table.set_hypers()
            self._last_hypers = hypers


class ExpectedCodes:
    """The quantized states of a step, which the C++ reader knows by their addresses.

    A state that is freed is expected no longer, because a new tensor could have its address. The
    references that tell it also make `torch.utils.swap_tensors` refuse a state.

    Attributes:
        addresses: The Python object of each state, by stream and parameter; 0 if it has no codes.
        formats: The elements of a block and the bits of a code, by stream.
        are_complete: Whether every quantized state is one that the reader can accept.
    """

    def __init__(self, kernel: KernelSignature, optimizer: OptimizerLike) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self.addresses = array("q", bytes(8 * len(kernel.keys) * len(params)))
        self.formats = array("q", bytes(16 * kernel.stream_count))
        self.are_complete = True
        self._references = list[ref[QuantizedTensor]]()
        for stream, state in enumerate(kernel.shaped_states, 2):
            if not state.is_quantized:
                continue
            self.formats[2 * stream : 2 * stream + 2] = array(
                "q", [state.block, CODE_MAPS[state.map].bits]
            )
            for place, param in enumerate(params, stream * len(params)):
                tensor = optimizer.state.get(param, {}).get(state.key)
                if _can_be_read(tensor, state):
                    self._expect(tensor, place)
                else:
                    self.are_complete &= not is_quantized(tensor)

    def _expect(self, tensor: QuantizedTensor, place: int) -> None:
        addresses = self.addresses
        addresses[place] = id(tensor)

        def forget(_: ref[QuantizedTensor]) -> None:
            addresses[place] = 0

        self._references.append(ref(tensor, forget))


def _can_be_read(tensor: Any, state: State) -> bool:
    """Tell whether a tensor has the codes that a state declares, in an order that torch can tell.

    Codes that share bytes have no strides in torch, so they must lie row by row.
    """
    return (
        type(tensor) is QuantizedTensor
        and (tensor.block, tensor.map) == (state.block, state.map)
        and (CODE_MAPS[tensor.map].bits == 8 or tensor.is_contiguous())
    )


class GroupCells:
    """Scalar cells of a table that hold states of groups, in float64."""

    def __init__(self, kernel: KernelSignature, table: Table, groups: Sequence[Group]) -> None:
        states = kernel.rule.group_states
        self._shared_keys = [state.key for state in kernel.rule.all_states]
        self._keys = [state.key for state in states]
        self._dtypes = [getattr(torch, state.dtype or "float64") for state in states]
        self._table_dtypes = table.dtypes
        bounds = accumulate((len(group["params"]) for group in groups), initial=0)
        self._param_ranges = list(pairwise(bounds))  # first and end index, by group
        count, first_stream = len(table.elements), len(kernel.keys) - len(self._keys)
        self._cells = [array("d", bytes(8 * count)) for _ in self._keys]
        for stream, cells in enumerate(self._cells, first_stream):
            first_address = cells.buffer_info()[0]
            addresses = array("q", range(first_address, first_address + 8 * count, 8))
            table.address[stream * count : (stream + 1) * count] = addresses
        code = DTYPE_CODES[torch.float64]
        streams = range(first_stream, len(kernel.keys))
        self.packed_codes = sum(shifted_to_stream(code, stream) for stream in streams)

    @staticmethod
    def fits(kernel: KernelSignature) -> bool:
        """Tell whether the cells of states of groups are the last streams of a kernel."""
        keys = [state.key for state in kernel.rule.group_states]
        return list(kernel.keys[len(kernel.keys) - len(keys) :]) == keys

    def load(self, groups: Sequence[Group]) -> bool:
        """Fill the cells; return False if a gathered step must convert a group's state first."""
        for key in self._shared_keys:
            value = groups[0].get(key)
            if not all(group.get(key) is value for group in groups):
                return False  # a user has set it in some group, and the others must follow
        for key, dtype, cells in zip(self._keys, self._dtypes, self._cells, strict=True):
            for group, (first, last) in zip(groups, self._param_ranges, strict=True):
                value = group.get(key)
                if type(value) is not Tensor or value.dtype != dtype:
                    return False
                if value.dim() or not value.is_cpu or is_inference(value):
                    return False
                if not fits_storage(value):
                    return False
                cells[first:last] = array("d", [value.item()]) * (last - first)
        return True

    def store(self, groups: Sequence[Group]) -> None:
        """Store in each group the cell of its first parameter that has a gradient."""
        for group, (first, last) in zip(groups, self._param_ranges, strict=True):
            updated = next(
                (index for index in range(first, last) if self._table_dtypes[index]), None
            )
            if updated is not None:
                for key, cells in zip(self._keys, self._cells, strict=True):
                    group[key].fill_(cells[updated])

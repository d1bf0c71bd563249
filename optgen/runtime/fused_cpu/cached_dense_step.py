"""Run a cached step: the C++ reader fetches all tensors anew, and Python reads groups only.

No address is remembered, so no address can be out of date. In every step the reader finds the
parameters in the groups' lists, then their gradients, and their states in the optimizer's state. It
reads addresses, dtypes and layouts from these tensors. The reader gives up if it cannot read a
tensor, or if the step may need another lowering: for example if a parameter is listed twice, or has
a dtype that no parameter of its group had before.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_
from threading import Lock
from typing import Any

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.context import OptimizerWithContext
from optgen.runtime.batch.dispatch_key import dtype_or_class
from optgen.runtime.forced_lowering import current_forced_lowering
from optgen.runtime.fused_cpu.group_cells import GroupCells
from optgen.runtime.fused_cpu.group_values import GroupGetter, GroupValues, is_constant
from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.fused_cpu.kernel.table import ShardsStruct, Table
from optgen.runtime.fused_cpu.reader.dtensor_specs import first_dtensor, specs_of
from optgen.runtime.fused_cpu.reader.tensor_reader import Reader, reader
from optgen.runtime.fused_cpu.toolchain.dtype_codes import DTYPE_CODES
from optgen.runtime.protocols import Group, OptimizerLike
from optgen.runtime.state.create import CreatedState
from optgen.runtime.tensors.group_view import seen_view

ReadTensors = Callable[[int], int]
"""A function of the reader: it takes the address of a request, and returns whether it succeeded."""

_dtype = attrgetter("dtype")

# The axes of a state by its shape, as tensor_request.h numbers them.
_AXES: dict[str | tuple[str, str], int] = {"like": 0, "row": 1, "col": 2}


class CachedDenseStep:
    """Cached plan of the last fused step; valid until groups, lowerings or dtypes change."""

    zeroes_gradients = True

    def __init__(
        self, kernel: Kernel, tensor_reader: Reader, groups: list[Group], updated_ids: set[int]
    ):
        self.forced_lowering = (
            current_forced_lowering()
        )  # the plan is valid for this choice of `use_lowering` only
        self._kernel, self._reader = kernel, tensor_reader
        self._busy = Lock()  # held during a step: two threads would overwrite the attributes below
        self._getters = [GroupGetter.of(kernel, group) for group in groups]
        pairs = zip(self._getters, groups, strict=True)
        self._group_values = [getter.values(group)._replace(params=[]) for getter, group in pairs]
        self._has_constant_hypers = [
            all(map(is_constant, values.hypers)) for values in self._group_values
        ]
        self._table = Table(kernel, sum(len(group["params"]) for group in groups), len(groups))
        self._needed_streams = array("Q")
        for group in groups:
            self._needed_streams.extend(
                kernel.needed_by_shape(group) if id(group) in updated_ids else (0, 0)
            )
        self._allowed_dtypes = array("Q", map(_dtype_bits, groups))
        views = [seen_view(kernel.rule, group) for group in groups]
        self._views = [None if view is None else array("q", [len(view), *view]) for view in views]
        self._list_addresses = array("q", bytes(8 * len(groups)))
        self._param_of_entry = array("q")  # index, for each entry of the optimizer's state
        self._table.hypers = [
            kernel.pack_hypers(kernel.rule.hyper_values(group)) for group in groups
        ]
        self._table.set_hypers()
        self._cells = GroupCells(kernel, self._table, groups) if kernel.rule.group_states else None
        self._unsharded = ShardsStruct()
        if kernel.suspends:
            self._table.struct.shards = ctypes.addressof(self._unsharded)
        self._buffers = tensor_reader.request_for(kernel, self._table)
        self._request = self._buffers.request
        self._fill_request()

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
        if not GroupCells.fits(kernel):
            return None
        if not all(type(group["params"]) is list for group in optimizer.param_groups):
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
        self._request.expected_specs = self._spec_addresses.buffer_info()[0]

    def begin(self, optimizer: OptimizerLike, created: list[CreatedState]) -> bool:
        """Take the first step; `created` lists the new states that the rule calls `fresh` on."""
        if not self._store_entries(optimizer.param_groups, optimizer.state):
            return False
        fresh, keys = self._table.fresh, self._kernel.rule.fresh
        entries = zip(map(id, optimizer.state.values()), self._param_of_entry, strict=True)
        index_by_id = dict(entries) if created else {}
        for values, key in created:
            fresh[index_by_id[id(values)]] |= 1 << keys.index(key)
        try:
            return self.run(optimizer)
        finally:
            fresh[:] = array("B", bytes(len(fresh)))

    def check(self, optimizer: OptimizerLike) -> bool:
        """Tell whether `run` would take the step; change nothing."""
        return self._read(optimizer, self._reader.check_step)

    def run(self, optimizer: OptimizerLike) -> bool:
        """Take a step; or change nothing and return False if it must gather its tensors."""
        return self._read(optimizer, self._reader.run_step)

    def _read(self, optimizer: OptimizerLike, read_tensors: ReadTensors) -> bool:
        """Read the groups, then the tensors by this function of the reader; return its answer."""
        if not self._busy.acquire(blocking=False):
            return False  # another thread takes a step
        try:
            has_read = self._read_groups_and_tensors(optimizer, read_tensors)
            if has_read and self._cells and read_tensors is self._reader.run_step:
                self._cells.store(optimizer.param_groups)
            return has_read
        finally:
            self._busy.release()

    def _read_groups_and_tensors(self, optimizer: OptimizerLike, read_tensors: ReadTensors) -> bool:
        groups = optimizer.param_groups
        if len(groups) != len(self._group_values) or not self._read_groups(groups):
            return False
        self._table.set_grad_scale(optimizer)
        if self._cells and not self._cells.load(groups):
            return False
        thread_pool = threads.current()
        request, state = self._request, optimizer.state
        request.state, request.threads = id(state), ctypes.addressof(thread_pool)
        return bool(read_tensors(self._buffers.address)) or (
            self._store_entries(groups, state) and bool(read_tensors(self._buffers.address))
        )

    def _read_groups(self, groups: list[Group]) -> bool:
        """Read the groups and update the hyperparameters.

        Return False if the step may need another lowering.
        """
        changed = False
        for index, (group, getter) in enumerate(zip(groups, self._getters, strict=True)):
            if len(group) != getter.key_count:
                return False
            try:
                values = getter.values(group)
            except KeyError:
                return False
            last = self._group_values[index]
            if not all(map(is_, values.options, last.options)) or type(values.params) is not list:
                return False
            if not (self._has_constant_hypers[index] and all(map(is_, values.hypers, last.hypers))):
                if not self._update_hypers(index, group, values):
                    return False
                changed = True
            self._list_addresses[index] = id(values.params)
        if changed:
            self._table.set_hypers()
        return True

    def _update_hypers(self, index: int, group: Group, values: GroupValues) -> bool:
        """Update a group's hyperparameters; return False if the step must gather its tensors."""
        # If a learning rate has become a tensor, the step may have to compute in its dtype.
        last = self._group_values[index].hypers
        if list(map(dtype_or_class, values.hypers)) != list(map(dtype_or_class, last)):
            return False
        try:
            self._table.hypers[index] = self._kernel.pack_hypers(
                self._kernel.rule.hyper_values(group)
            )
        except (TypeError, ValueError):
            return False  # the gathered step raises the error, after its collectives
        if any(self._needed_streams[2 * index : 2 * index + 2]):
            needed = self._kernel.needed_by_shape(group)
            self._needed_streams[2 * index : 2 * index + 2] = array("Q", needed)
        self._group_values[index] = values._replace(params=[])  # keeps no parameter alive
        self._has_constant_hypers[index] = all(map(is_constant, values.hypers))
        return True

    def _store_entries(self, groups: list[Group], state: dict[Any, Any]) -> bool:
        """Store the parameters, and the index of the parameter of each entry of the state.

        Return False if a parameter is listed twice, or if the number of parameters has changed.
        """
        params = array("q", map(id, chain.from_iterable(group["params"] for group in groups)))
        count, state_keys = len(params), array("q", map(id, state))
        if count != len(self._buffers.params) or len(set(params)) < count:
            return False
        self._buffers.params[:] = params
        self._param_of_entry = array("q", range(count))
        if state_keys.tobytes() != params.tobytes():
            index_by_id = dict(zip(params, self._param_of_entry, strict=True))
            indices = [index_by_id.get(key, -1) for key in state_keys]
            self._param_of_entry = array("q", indices)
        self._request.tensor_of_entry = self._param_of_entry.buffer_info()[0]
        self._request.entry_count = len(self._param_of_entry)
        return True

    def _fill_request(self) -> None:
        """Fill the reader's request: where the tensors are, and which tensors the rule needs."""
        request, keys = self._request, self._kernel.keys
        self._keys = array("q", map(id, keys))
        axes = (_AXES[state.shape] for state in self._kernel.shaped_states)
        self._axes = array("B", [_AXES["like"]] * 2) + array("B", axes)
        if any(self._views):
            view_addresses = (view.buffer_info()[0] if view else 0 for view in self._views)
            self._view_addresses = array("q", view_addresses)
            request.views = self._view_addresses.buffer_info()[0]
        self._key_texts = (ctypes.c_char_p * len(keys))(*(key.encode() for key in keys))
        arrays = {
            "lists": self._list_addresses,
            "needed_streams": self._needed_streams,
            "allowed_dtypes": self._allowed_dtypes,
            "keys": self._keys,
            "axes": self._axes,
        }
        for name, memory in arrays.items():
            setattr(request, name, memory.buffer_info()[0])
        request.group_count, request.key_texts = len(self._list_addresses), self._key_texts
        group_state_count = len(self._kernel.rule.group_states)
        request.scalar_count = len(keys) - self._kernel.stream_count - group_state_count
        if self._cells:
            request.group_cells = self._cells.packed_codes
        request.has_step_count = self._kernel.rule.step is not None
        request.by_matrix = self._kernel.by_matrix
        request.zeroes_gradients = self._kernel.rule.zero_grad
        request.shape = self._table.struct.shape


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

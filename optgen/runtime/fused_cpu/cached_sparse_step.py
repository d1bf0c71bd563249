"""Run a cached step that adds sparse gradients to the rows of their parameters.

Such a step has no state. If its gradients are small, gathering the tensors takes as long as the
update. So the table is allocated once. Every step checks the class, dtype, shape and memory of each
parameter and of its gradient anew. If a check fails, the step gathers its tensors.
"""

import ctypes
from array import array
from itertools import chain
from operator import is_
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from optgen.runtime.batch.grad_scaler import must_unscale
from optgen.runtime.forced_lowering import current_forced_lowering
from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.fused_cpu.kernel.table import Table
from optgen.runtime.fused_cpu.sparse_gradients import SparseGradientsStruct
from optgen.runtime.protocols import Group, OptimizerLike
from optgen.runtime.reader.step_reader import GroupGetter, is_constant
from optgen.runtime.reader.streams import shifted_to_stream
from optgen.runtime.rule import truth
from optgen.runtime.tensors.layout import all_fit_storage
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import is_contiguous, is_inference, is_neg

_PLAIN_CLASSES = {Tensor, torch.nn.Parameter}


class CachedSparseStep:
    """Cached plan of the last step, if all its gradients were sparse."""

    zeroes_gradients = False
    skips_on_device = False

    def __init__(self, kernel: Kernel, update_rows: Any, groups: list[Group]) -> None:
        self.forced_lowering = (
            current_forced_lowering()
        )  # the plan is valid for this choice of `use_lowering` only
        self._kernel, self._update_rows = kernel, update_rows
        self._busy = Lock()  # held during a step: two threads would overwrite the attributes below
        self._getters = [GroupGetter.of(kernel.rule, group) for group in groups]
        pairs = zip(self._getters, groups, strict=True)
        self._group_values = [getter.values(group)._replace(params=[]) for getter, group in pairs]
        self._param_counts = [len(group["params"]) for group in groups]
        count = sum(self._param_counts)
        self._table = Table(kernel, count, len(groups))
        self._table.hypers = [
            kernel.pack_hypers(kernel.rule.hyper_values(group)) for group in groups
        ]
        self._table.set_hypers()
        group_numbers = chain.from_iterable(
            [index] * param_count for index, param_count in enumerate(self._param_counts)
        )
        self._table.group[:] = array("i", group_numbers)
        self._gradient_columns = [
            array("q", bytes(8 * count)) for _ in SparseGradientsStruct.FIELDS
        ]
        addresses = (column.buffer_info()[0] for column in self._gradient_columns)
        self._gradients = SparseGradientsStruct(*addresses)

    @classmethod
    def of(cls, kernel: Kernel, update_rows: Any, groups: list[Group]) -> "CachedSparseStep | None":
        """Return the plan of a step that updates all these groups; None if it cannot be cached.

        `update_rows` is the compiled function of the kernel.
        """
        states = kernel.rule.states
        has_states = any(state.is_present(group) for state in states for group in groups)
        if has_states or kernel.rule.step is not None or not kernel.rule.scatter_adds:
            return None
        cached = cls(kernel, update_rows, groups)
        hypers = chain.from_iterable(values.hypers for values in cached._group_values)
        return cached if all(map(is_constant, hypers)) else None

    def check(self, optimizer: OptimizerLike) -> bool:
        """Return False: only the kernel itself finds out whether every index names a row."""
        return False

    def run(self, optimizer: OptimizerLike) -> bool:
        """Take a step; or change nothing and return False if it must gather its tensors."""
        groups = optimizer.param_groups
        if must_unscale(optimizer) or len(groups) != len(self._param_counts):
            return False
        if not self._busy.acquire(blocking=False):
            return False  # another thread takes a step
        try:
            return self._read_groups(groups) and self._run(groups)
        finally:
            self._busy.release()

    def _read_groups(self, groups: list[Group]) -> bool:
        """Read the groups and update the hyperparameters.

        Return False if the step may need another lowering, or may have to raise an error.
        """
        changed = False
        for index, (group, getter) in enumerate(zip(groups, self._getters, strict=True)):
            try:
                values = getter.values(group)
            except KeyError:
                return False
            last, param_count = self._group_values[index], len(values.params)
            has_same_options = all(map(is_, values.options, last.options))
            if not has_same_options or len(group) != getter.key_count:
                return False
            if param_count != self._param_counts[index]:
                return False
            if not all(map(is_, values.hypers, last.hypers)):
                if not self._allows_sparse_step(group) or not all(map(is_constant, values.hypers)):
                    return False
                self._table.hypers[index] = self._kernel.pack_hypers(
                    self._kernel.rule.hyper_values(group)
                )
                self._group_values[index] = values._replace(params=[])
                changed = True
        if changed:
            self._table.set_hypers()
        return True

    def _allows_sparse_step(self, group: Group) -> bool:
        """Tell whether a group's values allow sparse gradients and need no state."""
        rule = self._kernel.rule
        allows_sparse = not any(truth(group[key]) for key in rule.dense_only)
        return allows_sparse and not any(state.is_present(group) for state in rule.states)

    def _run(self, groups: list[Group]) -> bool:
        """Fill the table and update the rows; return False if the step must gather its tensors."""
        params: list[Tensor] = [param for group in groups for param in group["params"]]
        if len(set(map(id, params))) < len(params):
            return False
        gradients: list[Any] = []  # keeps indices and values alive until the call returns
        for index, param in enumerate(params):
            gradient = self._read_gradient(param)
            if gradient is None:
                return False
            gradients.append(gradient)
            self._fill_entries(index, param, *gradient)
        structs = (self._table.struct, self._gradients, threads.current())
        invalid_tensor = self._update_rows(*map(ctypes.addressof, structs))  # -1: none is invalid
        if invalid_tensor >= 0:
            return False  # the step that gathers its tensors raises the error
        increment_version(params)
        return True

    def _read_gradient(self, param: Tensor) -> tuple[Tensor, Tensor, int] | None:
        """Return the indices and values of a parameter's gradient, and the code of its dtype.

        Return None if the kernel cannot take the parameter or its gradient.
        """
        grad = param.grad
        if grad is None or type(param) not in _PLAIN_CLASSES or type(grad) is not Tensor:
            return None
        dtype = param.dtype
        code = DTYPE_CODES.get(dtype, 0)
        if not (grad.is_sparse and code and param.is_cpu and grad.is_cpu and grad.dtype == dtype):
            return None
        if grad.shape != param.shape or grad.sparse_dim() != 1 or is_neg(param):
            return None
        indices, values = grad._indices(), grad._values()
        tensors = (param, indices, values)
        is_readable = (
            all(map(is_contiguous, tensors))
            and all_fit_storage(tensors)
            and not (is_neg(values) or is_inference(param))
        )
        knows_dtype = self._kernel.dtype_bits >> code & 1
        return (indices, values, code) if is_readable and knows_dtype else None

    def _fill_entries(
        self, index: int, param: Tensor, indices: Tensor, values: Tensor, code: int
    ) -> None:
        """Fill the entries of tensor number `index` in the table and in `SparseGradientsStruct`."""
        table = self._table
        table.address[index] = param.data_ptr()
        table.address[len(table.elements) + index] = values.data_ptr()
        table.elements[index] = values.numel()
        table.dtypes[index] = code | shifted_to_stream(code, 1)
        entries = (indices.data_ptr(), indices.numel(), param.shape[0])
        for column, entry in zip(self._gradient_columns, entries, strict=True):
            column[index] = entry

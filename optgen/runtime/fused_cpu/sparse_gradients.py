"""Update the rows that sparse gradients touch; the compiled kernel finds these rows itself.

The kernel sorts the indices and sums the values of equal indices, unless the rule only adds
multiples of the gradient. torch's `coalesce`, which does the same, is many times slower. The kernel
updates each row in place, in one pass. So parameters and states must be contiguous, and gradients
must have one sparse dimension. For all other tensors, Python copies the touched rows, and the
kernel for dense tensors updates the copies.

A cached step adds such gradients to rows, and has no state. If its gradients are small, gathering
the tensors takes as long as the update. So the table is allocated once. Every step checks the
class, dtype, shape and memory of each parameter and of its gradient anew. If a check fails, the
step gathers its tensors.
"""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.check_batch import check_storages
from optgen.runtime.batch.grad_scaler import must_unscale
from optgen.runtime.batch.sparse_rows import row_index_error
from optgen.runtime.fused_cpu.cached_step import CachedKernelStep
from optgen.runtime.fused_cpu.fill_table import fill_table
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.reader.step_reader import GroupReader
from optgen.runtime.reader.streams import shifted_to_stream
from optgen.runtime.rule import Group, HasLowerings, OptimizerLike, truth
from optgen.runtime.tensors.dtensor import real_local_views
from optgen.runtime.tensors.layout import all_fit_storage, is_row_major
from optgen.runtime.toolchain import compiler, library_cache
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import is_contiguous, is_inference, is_neg, thread_pool

_functions: WeakKeyDictionary[Kernel, Any] = WeakKeyDictionary()


class SparseGradientsStruct(ctypes.Structure):
    """`SparseGradients` of sparse_kernel.h, field by field."""

    FIELDS = ("indices", "value_counts", "row_counts")
    _fields_ = [(name, c_void_p) for name in FIELDS]


def library(name: str, source: str) -> Path | None:
    """Return the path of the library with the kernel for sparse gradients; build it if necessary.

    Return None if the build is impossible, or if the rule has no such kernel.
    """
    if "OPTGEN_SPARSE" not in source:  # a kernel in phases, which takes copies of the rows
        return None
    try:
        return library_cache.library(*library_source(name, source))
    except (library_cache.NoCompilerError, compiler.CompileError, OSError):
        return None


def library_source(name: str, source: str) -> tuple[str, str]:
    """Return the name and the source of the library with a rule's kernel for sparse gradients."""
    return f"{name}_rows", f"#define OPTGEN_SPARSE\n{source}"


def kernel_function(kernel: Kernel) -> Any | None:
    """Return the compiled function that updates rows; None if the rule has none."""
    if kernel not in _functions:
        path, function = library(kernel.rule.name, kernel.source), None
        if path is not None:
            function = ctypes.CDLL(str(path))["optgen_step_sparse"]
            function.argtypes, function.restype = (c_void_p, c_void_p, c_void_p), c_int64
        _functions[kernel] = function
    return _functions[kernel]


def can_take(batch: Batch) -> bool:
    """Tell whether the kernel can update the rows of this batch in place."""
    have_row_indices = all(grad.sparse_dim() == 1 for grad in batch.grads)
    return have_row_indices and all(map(is_row_major, chain(batch.params, *batch.states)))


def prepare(
    kernel: Kernel, update_rows: Any, optimizer: HasLowerings, batches: Sequence[Batch]
) -> Callable[[], None]:
    """Return a function that updates the rows that the gradients of batches touch.

    `update_rows` is the compiled function of the kernel. The returned function raises an
    `IndexError`, before it writes anything, if an index names no row of its parameter.
    """
    grads = [grad for batch in batches for grad in batch.grads]
    values = [[_contiguous(grad._values()) for grad in batch.grads] for batch in batches]
    indices = [grad._indices().contiguous() for grad in grads]
    check_storages(
        {"the values of a gradient": chain(*values), "the indices of a gradient": indices}
    )
    # The table's gradients are the values of the sparse gradients.
    batches_of_values = [
        replace(batch, grads=real_local_views(column), _grad_dtypes=None)
        for batch, column in zip(batches, values, strict=True)
    ]
    table, _ = fill_table(kernel, batches_of_values, unscales=False)
    columns = {
        "indices": array("q", map(Tensor.data_ptr, indices)),
        "value_counts": array("q", map(Tensor.numel, indices)),
        "row_counts": array("q", [param.shape[0] for batch in batches for param in batch.params]),
    }
    # The kernel derives the size of a row from the number of elements of the values.
    for index, tensor in enumerate(chain.from_iterable(values)):
        table.elements[index] = tensor.numel() * (2 if tensor.is_complex() else 1)
    addresses = {name: column.buffer_info()[0] for name, column in columns.items()}
    gradients = SparseGradientsStruct(**addresses)

    def run() -> None:
        table.set_grad_scale(optimizer)
        arguments = (table.struct, gradients, thread_pool())
        invalid_tensor = update_rows(*map(ctypes.addressof, arguments))  # -1: no tensor is invalid
        if invalid_tensor >= 0:
            named_rows = indices[invalid_tensor].tolist()[0]
            row_count = columns["row_counts"][invalid_tensor]
            raise row_index_error(min(named_rows), max(named_rows), row_count)
        for batch in batches:
            increment_version(batch.params)

    return run


def _contiguous(values: Tensor) -> Tensor:
    return values.resolve_neg().contiguous()


_PLAIN_CLASSES = {Tensor, torch.nn.Parameter}


class CachedSparseStep(CachedKernelStep):
    """A cached step whose gradients are all sparse; Python reads its tensors."""

    zeroes_gradients = False

    def __init__(self, kernel: Kernel, update_rows: Any, groups: list[Group]) -> None:
        super().__init__(kernel, groups)
        self._update_rows = update_rows
        self._groups = GroupReader(kernel.rule, groups, self._set_hypers)
        self._param_counts = [len(group["params"]) for group in groups]
        numbers = ([index] * count for index, count in enumerate(self._param_counts))
        self._table.group[:] = array("i", chain.from_iterable(numbers))
        self._gradient_columns = [
            array("q", bytes(8 * sum(self._param_counts))) for _ in SparseGradientsStruct.FIELDS
        ]
        addresses = (column.buffer_info()[0] for column in self._gradient_columns)
        self._gradients = SparseGradientsStruct(*addresses)

    @classmethod
    def of(cls, kernel: Kernel, update_rows: Any, groups: list[Group]) -> "CachedSparseStep | None":
        """Return the plan of a step that updates all these groups; None if it cannot be cached.

        `update_rows` is the compiled function of the kernel.
        """
        if kernel.rule.step is not None or not kernel.rule.scatter_adds:
            return None
        try:
            cached = cls(kernel, update_rows, groups)
        except ValueError:
            return None
        return cached if cached._groups.has_constant_hypers else None

    def check(self, optimizer: OptimizerLike) -> bool:
        """Return False: only the kernel itself finds out whether every index names a row."""
        return False

    def run(self, optimizer: OptimizerLike) -> bool:
        """Take a step; or change nothing and return False if it must gather its tensors."""
        groups = optimizer.param_groups
        if must_unscale(optimizer):
            return False
        if not self._busy.acquire(blocking=False):
            return False  # another thread takes a step
        try:
            return self._read_groups(groups) and self._run(groups)
        finally:
            self._busy.release()

    def _set_hypers(self, index: int, group: Group) -> None:
        """Convert a group's hyperparameters; raise an error if they need a state, or dense ones."""
        rule = self._kernel.rule
        needs_state = any(state.is_present(group) for state in rule.states)
        if needs_state or any(truth(group[key]) for key in rule.dense_only):
            raise ValueError("these hyperparameters need a state, or dense gradients")
        super()._set_hypers(index, group)

    def _read_groups(self, groups: list[Group]) -> bool:
        """Read the groups; return False if the step must gather its tensors."""
        changed = self._groups.read(groups)
        if changed is None:
            return False
        if changed:
            self._table.set_hypers()
        has_equal_counts = [len(group["params"]) for group in groups] == self._param_counts
        return has_equal_counts and self._groups.has_constant_hypers

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
        structs = (self._table.struct, self._gradients, thread_pool())
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

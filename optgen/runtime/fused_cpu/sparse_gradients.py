"""Update the rows that sparse gradients touch; the compiled kernel finds these rows itself.

The kernel sorts the indices and sums the values of equal indices, unless the rule only adds
multiples of the gradient. torch's `coalesce`, which does the same, is many times slower. The kernel
updates each row in place, in one pass. So parameters and states must be contiguous, and gradients
must have one sparse dimension. For all other tensors, Python copies the touched rows, and the
kernel for dense tensors updates the copies.
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

from torch import Tensor
from torch.autograd.graph import increment_version

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.checks import check_storages
from optgen.runtime.batch.sparse_rows import row_index_error
from optgen.runtime.fused_cpu.kernel import threads
from optgen.runtime.fused_cpu.kernel.fill_table import fill_table
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.tensors.dtensor import real_local_views
from optgen.runtime.tensors.layout import is_row_major
from optgen.runtime.toolchain import compiler, library_cache

_functions: WeakKeyDictionary[Kernel, Any] = WeakKeyDictionary()


class SparseGradientsStruct(ctypes.Structure):
    """`SparseGradients` of scatter_add.h, field by field."""

    FIELDS = ("indices", "value_counts", "row_counts")
    _fields_ = [(name, c_void_p) for name in FIELDS]


def library(name: str, source: str) -> Path | None:
    """Return the path of the library with the kernel for sparse gradients; build it if necessary.

    Return None if the build is impossible, or if the rule has no such kernel.
    """
    if "OPTGEN_SPARSE" not in source:
        return None
    try:
        return library_cache.library(f"{name}_rows", f"#define OPTGEN_SPARSE\n{source}")
    except (library_cache.NoCompilerError, compiler.CompileError, OSError):
        return None


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
        arguments = (table.struct, gradients, threads.current())
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

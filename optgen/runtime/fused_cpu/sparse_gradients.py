"""Sparse gradients in the fused C++ lowering: the kernel finds the rows they touch by itself.

It sorts the indices and adds up what stands for one row, which torch's coalesce does many times
slower, and updates each row in one trip, without a copy of it. Rows lie in memory as they are, so
parameters and states must be contiguous and gradients have one sparse dimension; the touched rows
of any others are taken in Python, and the kernel for dense tensors updates those.
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
from optgen.runtime.batch.sparse_rows import named_beyond
from optgen.runtime.fused_cpu import threads
from optgen.runtime.fused_cpu.build import compiler, library_cache
from optgen.runtime.fused_cpu.fill_table import fill_table
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.protocols import Lowered
from optgen.runtime.tensors.layout import is_plain
from optgen.runtime.tensors.real_views import reals

_functions: WeakKeyDictionary[Kernel, Any] = WeakKeyDictionary()


class Rows(ctypes.Structure):
    """`SparseGradients` of scatter_add.h, field by field."""

    FIELDS = ("indices", "values", "rows")
    _fields_ = [(name, c_void_p) for name in FIELDS]


def library(name: str, source: str) -> Path | None:
    """Where the kernel for rows lies, a library of its own; None where it cannot be had.

    Of a rule that reduces there is none.
    """
    if "OPTGEN_SPARSE" not in source:
        return None
    try:
        return library_cache.library(f"{name}_rows", f"#define OPTGEN_SPARSE\n{source}")
    except (library_cache.NoCompilerError, compiler.CompileError, OSError):
        return None


def function(kernel: Kernel) -> Any | None:
    """The compiled function for rows, if there is one."""
    if kernel not in _functions:
        path, found = library(kernel.rule.name, kernel.source), None
        if path is not None:
            found = ctypes.CDLL(str(path))["optgen_step_sparse"]
            found.argtypes, found.restype = (c_void_p, c_void_p, c_void_p), c_int64
        _functions[kernel] = found
    return _functions[kernel]


def fits(batch: Batch) -> bool:
    """Tell whether the kernel can find this work's rows in memory."""
    one = all(grad.sparse_dim() == 1 for grad in batch.grads)
    return one and all(map(is_plain, chain(batch.params, *batch.states)))


def ready(
    kernel: Kernel, update: Any, optimizer: Lowered, batches: Sequence[Batch]
) -> Callable[[], None]:
    """Get ready to update the rows that gradients of works touch, by the compiled function.

    The call raises an IndexError, and has done nothing, where an index is no row of its parameter.
    """
    grads = [grad for batch in batches for grad in batch.grads]
    values = [[_in_order(grad._values()) for grad in batch.grads] for batch in batches]
    indices = [grad._indices().contiguous() for grad in grads]
    dense = [
        replace(batch, grads=reals(column), _grad_dtypes=None)
        for batch, column in zip(batches, values, strict=True)
    ]
    table, _ = fill_table(kernel, dense, scaled=False)
    columns = {
        "indices": array("q", map(Tensor.data_ptr, indices)),
        "values": array("q", map(Tensor.numel, indices)),
        "rows": array("q", [param.shape[0] for batch in batches for param in batch.params]),
    }
    for place, column in enumerate(chain.from_iterable(values)):
        table.elements[place] = column.numel() * (2 if column.is_complex() else 1)
    rows = Rows(**{name: column.buffer_info()[0] for name, column in columns.items()})

    def run() -> None:
        table.set_scale(optimizer)
        arguments = (table.struct, rows, threads.current())
        wrong = update(*map(ctypes.addressof, arguments))
        if wrong >= 0:
            named, count = indices[wrong].tolist()[0], columns["rows"][wrong]
            raise named_beyond(min(named), max(named), count)
        for batch in batches:
            increment_version(batch.params)

    return run


def _in_order(values: Tensor) -> Tensor:
    return values.resolve_neg().contiguous()

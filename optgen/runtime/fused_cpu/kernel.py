"""A compiled rule: its streams, the table of tensors that it reads, and the calls that run it.

The matrix ops of a rule are left to Python. Kernels run on torch's own thread pool.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from optgen.runtime import matrix_ops
from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.hyperparameters import HyperConverter
from optgen.runtime.reader.streams import STREAM_BITS, RuleStreams, TableArrays, shifted_to_stream
from optgen.runtime.rule import HasLowerings, MatrixCall
from optgen.runtime.tensors import layout
from optgen.runtime.toolchain import dtype_variants
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import Threads, data_ptr, thread_pool


class KernelSignature(RuleStreams):
    """Streams of a compiled rule, and the properties that its library exports.

    The locals are the operands and results of matrix ops.
    """

    def __init__(self, lowered: HasLowerings, library: ctypes.CDLL) -> None:
        self._library = library
        super().__init__(lowered.rule, lowered.rule.matrices)
        self.pack_hypers = HyperConverter(lowered).row
        self.has_shapes = self._exports("optgen_shapes")
        self.by_matrix = self._exports("optgen_by_matrix")
        self.matrix_calls = lowered.rule.matrix_calls
        self.reads_codes = not lowered.rule.why_codes_are_not_read("fused_cpu")

    def _exports(self, name: str) -> bool:
        try:
            return bool(self._library[name])
        except (AttributeError, UnicodeDecodeError):  # the error names the path: it may be no UTF-8
            return False


class Kernel(KernelSignature):
    """Compiled rule: its library, and the streams it takes in the order of the table.

    A kernel takes tensors of the dtypes whose bit is set in `dtype_bits`, and scalar states of any
    dtype. `sweep_path` is the path of its sweep library, if it needs one.
    """

    suspends = False  # whether steps wait for other ranks, or for the other parameters

    def __init__(
        self,
        lowered: HasLowerings,
        library: Path,
        dtype_bits: int,
        source: str,
        sweep_path: Path | None,
    ) -> None:
        super().__init__(lowered, ctypes.CDLL(str(library)))
        self.dtype_bits, self.source = dtype_bits, source
        if sweep_path:
            dtype_variants.connect_sweeps(self._library, sweep_path)
        if self._exports("optgen_calls"):  # earlier versions listed the calls in C++
            raise RuntimeError(
                f"the C++ of rule {self.rule.name!r} is of an earlier optgen: generate it again"
            )
        symbols = [
            "optgen_step",
            *(f"optgen_step_{segment}" for segment in range(2, len(self.matrix_calls) + 2)),
        ]
        # A segment is the code between two matrix ops; None stands for an empty segment.
        self.segments = [self._function(name) if self._exports(name) else None for name in symbols]

    def _function(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = (c_void_p, c_void_p), None
        return function

    @property
    def address(self) -> int | None:
        """The address of the code of a kernel without matrix ops."""
        step = self.segments[0]
        assert step is not None  # only a kernel with matrix ops has empty segments
        return ctypes.cast(step, c_void_p).value

    def run_table(self, table: Table, threads: Threads) -> None:
        """Update all tensors of a table; the rule has no matrix ops.

        The C++ code runs without the interpreter's lock.
        """
        (segment,) = self.segments
        segment(ctypes.addressof(table.struct), ctypes.addressof(threads))  # type: ignore[misc]

    def run(self, table: Table, optimizer: HasLowerings) -> None:
        """Update all tensors of a table; the C++ code runs without the interpreter's lock."""
        table.set_grad_scale(optimizer)
        for position, segment in enumerate(self.segments):
            if position:
                self._call_matrix_op(self.matrix_calls[position - 1], table)
                table.struct.grad_scale = None  # the first segment has unscaled the gradients
            if segment is not None:
                segment(ctypes.addressof(table.struct), ctypes.addressof(thread_pool()))

    def _call_matrix_op(self, call: MatrixCall, table: Table) -> None:
        """Apply a matrix op to the tensors that its condition selects, one call per param group."""
        source, target = self.streams_of(call)
        for index, (batch, columns) in enumerate(zip(table.batches, table.columns, strict=True)):
            indices = call.selected_indices(columns[0])
            results = matrix_op_results(call, batch, [columns[source][i] for i in indices])
            table.set_results(target, index, dict(zip(indices, results, strict=True)), source)

    def streams_of(self, call: MatrixCall) -> tuple[int, int]:
        """Return the streams of the table that hold a matrix op's operand and its result."""
        first_local = 2 + len(self.shaped_states)
        source, target = map(self.local_names.index, (call.source, call.target))
        return first_local + source, first_local + target


def matrix_op_results(call: MatrixCall, batch: Batch, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Apply a matrix op to matrices of a batch, with the arguments of its group."""
    arguments = (
        batch.group[value] if isinstance(value, str) else float(value) for value in call.arguments
    )
    results: list[Tensor] = getattr(matrix_ops, call.op)(matrices, *arguments, *call.options)
    return results


class _TableStruct(ctypes.Structure):
    """`Table` of tensor_table.h, field by field."""

    _fields_ = [
        ("tensor_count", c_int64),
        *(
            (name, c_void_p)
            for name in ("address", "elements", "dtypes", "group", "fresh", "hypers", "grad_scale")
        ),
        ("shape", c_void_p),
        ("shards", c_void_p),
    ]


class ShardsStruct(ctypes.Structure):
    """`Shards` of tensor_table.h. If all fields are 0, the table has whole tensors only."""

    _fields_ = [
        (name, c_void_p) for name in ("by_tensor", "rank_group_count", "counts", "numbers", "step")
    ]


class Table(TableArrays):
    """`Table` of tensor_table.h, and the arrays that it points to."""

    def __init__(self, kernel: KernelSignature, tensor_count: int, group_count: int) -> None:
        super().__init__(len(kernel.keys), tensor_count, kernel.has_shapes)
        self.kernel = kernel
        self.fresh = array("B", bytes(tensor_count))
        self.hypers: list[array[float]] = [array("d")] * group_count
        self.batches: list[Batch] = []
        self.has_copies = False  # whether tensors were copied that cannot be updated in place
        self.columns: list[list[list[Tensor]]] = []  # [batch][stream], with copies of tensors
        self.struct = _TableStruct(
            tensor_count,
            *(
                memory.buffer_info()[0]
                for memory in (self.address, self.elements, self.dtypes, self.group, self.fresh)
            ),
        )
        self.struct.shape = self.shape.buffer_info()[0] if kernel.has_shapes else None

    def set_column(self, stream: int, first: int, column: Sequence[Tensor]) -> None:
        """Enter the tensors of one stream, beginning at row `first`."""
        start = stream * len(self.elements) + first
        self.address[start : start + len(column)] = array("q", list(map(data_ptr, column)))
        codes = {dtype: shifted_to_stream(code, stream) for dtype, code in DTYPE_CODES.items()}
        other_streams = ~shifted_to_stream(STREAM_BITS, stream) & 2**64 - 1
        for index, tensor in enumerate(column, first):
            self.dtypes[index] = self.dtypes[index] & other_streams | codes[tensor.dtype]

    def set_results(self, stream: int, index: int, results: dict[int, Tensor], source: int) -> None:
        """Enter the results of a matrix op for some tensors of batch number `index`.

        All other tensors of the batch keep their operand, in stream `source`, as the result.
        """
        columns = self.columns[index]
        columns[stream] = list(columns[source])
        for i, result in results.items():
            columns[stream][i] = layout.laid_out_like(result, columns[0][i])
        first = sum(len(earlier[0]) for earlier in self.columns[:index])
        self.set_column(stream, first, columns[stream])

    def set_hypers(self) -> None:
        """Copy the groups' hyperparameters into one array for the kernel."""
        self._hyper_rows = array("d", chain.from_iterable(self.hypers))
        self.struct.hypers = self._hyper_rows.buffer_info()[0]

    def set_grad_scale(self, optimizer: HasLowerings) -> None:
        """Have the kernel divide gradients by the scale of the gradient scaler, if there is one."""
        scale = getattr(optimizer, "grad_scale", None)
        self._scale = ctypes.c_double(1.0 if scale is None else float(scale))
        self.struct.grad_scale = None if scale is None else ctypes.addressof(self._scale)

"""Allocate the table that a C++ kernel reads: addresses, sizes and dtypes of all streams."""

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from itertools import chain

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel.signature import KernelSignature
from optgen.runtime.protocols import HasLowerings
from optgen.runtime.reader.streams import STREAM_BITS, TableArrays, shifted_to_stream
from optgen.runtime.tensors import layout
from optgen.runtime.toolchain.dtype_variants import DTYPE_CODES
from optgen.runtime.torch_private import data_ptr


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

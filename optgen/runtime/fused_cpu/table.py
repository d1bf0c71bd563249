"""The table a C++ kernel reads: addresses, sizes and dtypes of every stream of every tensor."""

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from itertools import chain

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel_signature import KernelSignature
from optgen.runtime.fused_cpu.stream_codes import CODES, in_stream
from optgen.runtime.protocols import Lowered
from optgen.runtime.tensors import layout
from optgen.runtime.torch_private import data_ptr

SHAPE = 4
"""The numbers of a parameter's shape: its dimensions, matrices, rows and columns."""


class _Table(ctypes.Structure):
    _fields_ = [
        ("tensors", c_int64),
        *(
            (name, c_void_p)
            for name in ("address", "elements", "types", "group", "fresh", "hypers", "grad_scale")
        ),
        ("shape", c_void_p),
        ("shards", c_void_p),
    ]


class Columns:
    """Addresses, sizes and types of so many streams, and to which groups the tensors belong."""

    def __init__(self, streams: int, tensors: int) -> None:
        self.address = array("q", bytes(8 * streams * tensors))
        self.elements = array("q", bytes(8 * tensors))
        self.types = array("Q", bytes(8 * tensors))
        self.group = array("i", bytes(4 * tensors))


class Table(Columns):
    """`Table` of tensor_table.h and the arrays it points to."""

    def __init__(self, kernel: KernelSignature, tensors: int, groups: int) -> None:
        super().__init__(len(kernel.keys), tensors)
        self.kernel = kernel
        self.fresh = array("B", bytes(tensors))
        self.hypers: list[array[float]] = [array("d")] * groups
        self.shape = array("q", bytes(8 * SHAPE * tensors * kernel.asks_shapes))
        self.batches: list[Batch] = []
        self.has_copies = False  # of tensors that could not be walked where they lie
        self.held: list[list[list[Tensor]]] = []  # whose addresses stand here, copies among them
        self.struct = _Table(
            tensors,
            *(
                column.buffer_info()[0]
                for column in (self.address, self.elements, self.types, self.group, self.fresh)
            ),
        )
        self.struct.shape = self.shape.buffer_info()[0] if kernel.asks_shapes else None

    def set_column(self, stream: int, first: int, column: Sequence[Tensor]) -> None:
        """Enter the tensors of one stream, from a place in the list on."""
        place = stream * len(self.elements) + first
        self.address[place : place + len(column)] = array("q", list(map(data_ptr, column)))
        codes = {dtype: in_stream(code, stream) for dtype, code in CODES.items()}
        absent = ~in_stream(15, stream) & 2**64 - 1
        for index, tensor in enumerate(column, first):
            self.types[index] = self.types[index] & absent | codes[tensor.dtype]

    def put_made(self, stream: int, index: int, made: dict[int, Tensor], source: int) -> None:
        """Enter what a matrix word has made of some tensors of a group; others stay as they are."""
        columns = self.held[index]
        columns[stream] = list(columns[source])
        for place, each in made.items():
            columns[stream][place] = layout.beside(each, columns[0][place])
        first = sum(len(before[0]) for before in self.held[:index])
        self.set_column(stream, first, columns[stream])

    def set_hypers(self) -> None:
        """Lay the groups' rows out for the kernel."""
        self.rows = array("d", chain.from_iterable(self.hypers))
        self.struct.hypers = self.rows.buffer_info()[0]

    def set_scale(self, optimizer: Lowered) -> None:
        """Have gradients divided by what a gradient scaler multiplied them by."""
        scale = getattr(optimizer, "grad_scale", None)
        self._scale = ctypes.c_double(1.0 if scale is None else float(scale))
        self.struct.grad_scale = None if scale is None else ctypes.addressof(self._scale)

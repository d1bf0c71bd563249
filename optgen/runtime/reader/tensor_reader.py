"""Load the C++ reader, which reads a step's tensors without Python, and fill its requests.

The reader needs offsets in torch's objects, which object_layout.py measures, if
trusted_torch.py allows it. Without a reader, steps gather their tensors in Python.
"""

import ctypes
from array import array
from ctypes import c_char_p, c_int, c_int64, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.reader.object_layout import (
    Layout,
    UnknownLayoutError,
    measure_layout,
    plain_keys_on,
    with_dtensor_fields,
)
from optgen.runtime.reader.streams import RuleStreams, TableArrays
from optgen.runtime.reader.trusted_torch import check_reader_allowed
from optgen.runtime.toolchain import library_cache
from optgen.runtime.toolchain.library_cache import inline_includes


class Answer(IntEnum):
    """`Answer` of tensor_reader.cpp: what became of a request to read a step."""

    REFUSED = 0  # the reader cannot read some tensor, or must not
    DONE = 1
    NOT_AS_PLANNED = 2  # the reader has read other tensors than a plan on a device takes


class Request(ctypes.Structure):
    """`Request` of tensor_request.h, field by field."""

    _fields_ = [
        ("layout", ctypes.POINTER(Layout)),
        ("group_count", c_int64),
        ("lists", c_void_p),
        ("needed_streams", c_void_p),
        ("allowed_dtypes", c_void_p),
        ("views", c_void_p),
        ("state", c_void_p),
        ("entry_count", c_int64),
        ("tensor_of_entry", c_void_p),
        ("stream_count", c_int64),
        ("scalar_count", c_int64),
        ("keys", c_void_p),
        ("key_texts", ctypes.POINTER(c_char_p)),
        ("axes", c_void_p),
        ("has_step_count", c_int64),
        ("by_matrix", c_int64),
        ("zeroes_gradients", c_int64),
        ("tensor_count", c_int64),
        ("expected_specs", c_void_p),
        ("expected_codes", c_void_p),
        ("code_formats", c_void_p),
        ("group_cells", c_uint64),
        ("params", c_void_p),
        ("handles", c_void_p),
        ("address", c_void_p),
        ("elements", c_void_p),
        ("dtypes", c_void_p),
        ("group", c_void_p),
        ("shape", c_void_p),
        ("planned", c_void_p),
        ("kernel", c_void_p),
        ("table", c_void_p),
        ("threads", c_void_p),
    ]


class Planned(ctypes.Structure):
    """`Planned` of tensor_request.h, field by field."""

    _fields_ = [(name, c_void_p) for name in ("dtypes", "elements", "shape", "devices")]


class RequestBuffers:
    """Request to fill the arrays of a table, and the memory that this request points to."""

    def __init__(
        self, target: TableArrays, axes: "array[int] | None" = None, **fields: Any
    ) -> None:
        self._axes = axes or array("B")
        self.params = array("q", bytes(8 * len(target.elements)))
        self._handles = array("q", bytes(8 * len(target.address)))
        arrays = {
            "params": self.params,
            "handles": self._handles,
            "address": target.address,
            "elements": target.elements,
            "dtypes": target.dtypes,
            "group": target.group,
            "axes": self._axes,
        }
        addresses = {name: memory.buffer_info()[0] for name, memory in arrays.items()}
        addresses["shape"] = target.shape.buffer_info()[0] if target.shape else 0
        self.request = Request(tensor_count=len(target.elements), **addresses, **fields)
        self.address = ctypes.addressof(self.request)


class Reader:
    """Compiled reader, with the object layout that it assumes."""

    def __init__(self) -> None:
        check_reader_allowed(_source())
        with torch.device("cpu"):  # whatever the default device is
            self.layout = measure_layout()
        # PyDLL keeps the interpreter's lock held: the reader reads Python objects.
        library = ctypes.PyDLL(str(library_cache.library(*library_source())))
        sizes = list((c_int64 * 2).in_dll(library, "optgen_sizes"))
        if sizes != [ctypes.sizeof(Layout), ctypes.sizeof(Request)]:
            raise UnknownLayoutError("structs have different sizes in C++ and in ctypes")
        self.read_step = library.optgen_read_step
        self.read_step.argtypes = (c_void_p, c_int)  # whether to take the step; returns an `Answer`
        self.run_call = library.optgen_read_lists_and_step
        self.run_call.argtypes = (c_void_p,)
        self._read_gradients = library.optgen_read_gradients
        self._read_gradients.argtypes = (c_void_p,)
        # By the type of the device, and the bits of the dtypes that a kernel knows.
        self._layouts: dict[tuple[str, int], Layout] = {}

    def add_dtensor(self, dtensor: Tensor) -> bool:
        """Measure the layout of DTensors on this DTensor; tell whether that was possible."""
        if self.layout.dtensor_type == id(type(dtensor)):
            return True
        try:
            self.layout = with_dtensor_fields(self.layout, dtensor)
        except UnknownLayoutError:
            return False
        self._layouts = {}
        return True

    def read_dtypes(self, lists: list[list[Tensor]]) -> list[list[int]]:
        """Return for each group the dtype codes of its parameters and gradients, as in a table.

        The code of a parameter without a gradient is 0. If the reader cannot read some tensor,
        return an empty list.
        """
        filled = TableArrays(stream_count=2, tensor_count=sum(map(len, lists)))
        list_ids = array("q", map(id, lists))
        allowed_dtypes = array("Q", [self.layout.stream_dtypes]) * len(lists)
        buffers = RequestBuffers(
            filled,
            layout=ctypes.pointer(self.layout),
            group_count=len(lists),
            lists=list_ids.buffer_info()[0],
            allowed_dtypes=allowed_dtypes.buffer_info()[0],
        )
        buffers.params[:] = array("q", map(id, chain.from_iterable(lists)))
        if not self._read_gradients(buffers.address):
            return []
        codes = iter(filled.dtypes)
        return [list(islice(codes, len(params))) for params in lists]

    def request_for(
        self, columns: TableArrays, streams: RuleStreams, dtype_bits: int, device: torch.device
    ) -> RequestBuffers:
        """Return a request to fill a table's columns; the caller adds where the tensors are.

        The table has streams of tensors, then scalar cells.

        `dtype_bits` has a bit for each dtype that a stream may have. Step counts and scalar states
        may have any dtype.

        Raises:
            UnknownLayoutError: The tensors of the device cannot be read.
        """
        return RequestBuffers(
            columns,
            layout=ctypes.pointer(self._layout_for(dtype_bits, device)),
            stream_count=streams.stream_count,
            scalar_count=len(streams.scalar_keys),
            axes=streams.axes(),
        )

    def _layout_for(self, dtype_bits: int, device: torch.device) -> Layout:
        """Return the layout of a device's tensors, with these dtypes for streams."""
        key = device.type, self.layout.stream_dtypes & dtype_bits
        if key not in self._layouts:
            layout = Layout.from_buffer_copy(self.layout)
            if device.type != "cpu":
                layout.plain_keys = plain_keys_on(self.layout, device)
            layout.stream_dtypes = key[1]
            self._layouts[key] = layout
        return self._layouts[key]


@cache
def reader() -> Reader | None:
    """Return the reader; None if it cannot be built or loaded, since steps can do without it."""
    try:
        return Reader()
    except Exception:
        return None


def built_reader() -> Reader | None:
    """Return the reader if loading it needs no compiler; else None."""
    return reader() if is_built() else None


def is_built() -> bool:
    """Tell whether the reader is loaded, or is in the cache of compiled libraries."""
    if reader.cache_info().currsize:
        return True
    try:
        return library_cache.find_built(*library_source()) is not None
    except OSError:
        return False


def library_source() -> tuple[str, str]:
    """Return the name and the source of the reader's library."""
    return "tensor_reader", _source()


@cache
def _source() -> str:
    return inline_includes(Path(__file__).with_suffix(".cpp").read_text())

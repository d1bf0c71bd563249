"""The C++ reader of a step's tensors, compiled, and what it is asked.

What it must know of torch's objects is measured (object_layout.py): at once on versions of torch
that the tests have run on, and on any other once its trial is passed (reader_trial.py). Where
there is no reader, steps gather their tensors in Python.
"""

import ctypes
import os
import sys
from array import array
from ctypes import c_char_p, c_int64, c_void_p
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.fused_cpu.kernel.table import Columns, Table
from optgen.runtime.fused_cpu.reader import trial
from optgen.runtime.fused_cpu.reader.object_layout import (
    Layout,
    UnknownLayoutError,
    find_parts,
    measured,
)
from optgen.runtime.fused_cpu.toolchain import library_cache
from optgen.runtime.fused_cpu.toolchain.source import complete

_TRIED = ("2.11", "2.12", "2.13", "2.14", "2.15")  # versions of torch


class Request(ctypes.Structure):
    """`Request` of tensor_request.h, field by field."""

    _fields_ = [
        ("layout", ctypes.POINTER(Layout)),
        ("groups", c_int64),
        ("lists", c_void_p),
        ("needed", c_void_p),
        ("allowed", c_void_p),
        ("state", c_void_p),
        ("entries", c_int64),
        ("order", c_void_p),
        ("streams", c_int64),
        ("scalars", c_int64),
        ("keys", c_void_p),
        ("names", ctypes.POINTER(c_char_p)),
        ("axes", c_void_p),
        ("counted", c_int64),
        ("by_matrix", c_int64),
        ("tensors", c_int64),
        ("specs", c_void_p),
        ("params", c_void_p),
        ("handles", c_void_p),
        ("address", c_void_p),
        ("elements", c_void_p),
        ("types", c_void_p),
        ("group", c_void_p),
        ("shape", c_void_p),
        ("kernel", c_void_p),
        ("table", c_void_p),
        ("threads", c_void_p),
    ]


class Inquiry:
    """A request about columns to be read, and the memory that the reader needs beside them."""

    def __init__(self, columns: Columns, **fields: Any) -> None:
        self.params = array("q", bytes(8 * len(columns.elements)))
        self._handles = array("q", bytes(8 * len(columns.address)))
        arrays = {
            "params": self.params,
            "handles": self._handles,
            "address": columns.address,
            "elements": columns.elements,
            "types": columns.types,
            "group": columns.group,
        }
        places = {name: memory.buffer_info()[0] for name, memory in arrays.items()}
        self.request = Request(tensors=len(columns.elements), **places, **fields)
        self.address = ctypes.addressof(self.request)


class Reader:
    """The compiled reader, and the layout it is to assume."""

    def __init__(self) -> None:
        _check_versions()
        self.layout = measured()
        # PyDLL: the interpreter's lock stays held.
        library = ctypes.PyDLL(str(library_cache.library("tensor_reader", _source())))
        sizes = list((c_int64 * 2).in_dll(library, "optgen_sizes"))
        if sizes != [ctypes.sizeof(Layout), ctypes.sizeof(Request)]:
            raise UnknownLayoutError("C++ and ctypes lay structs out in different ways")
        self.repeat = library.optgen_repeat
        self.repeat.argtypes = (c_void_p,)
        self.update = library.optgen_update
        self.update.argtypes = (c_void_p,)
        self._look = library.optgen_look
        self._look.argtypes = (c_void_p,)
        self._layouts: dict[int, Layout] = {}  # by the types that kernels know

    def learn(self, shared: Tensor) -> bool:
        """Learn to read tensors that processes share, from one; tell whether they can be read."""
        try:
            for layout in (self.layout, *self._layouts.values()):
                if layout.shared != id(type(shared)):
                    find_parts(layout, shared)
        except UnknownLayoutError:
            return False
        return True

    def look(self, lists: list[list[Tensor]]) -> list[list[int]]:
        """The types of groups' parameters and of their gradients, as a table has them.

        0 for a parameter without a gradient; nothing at all if some tensor is a strange one.
        """
        columns = Columns(2, sum(map(len, lists)))
        places = array("q", map(id, lists))
        allowed = array("Q", [self.layout.types]) * len(lists)
        asked = Inquiry(
            columns,
            layout=ctypes.pointer(self.layout),
            groups=len(lists),
            lists=places.buffer_info()[0],
            allowed=allowed.buffer_info()[0],
        )
        asked.params[:] = array("q", map(id, chain.from_iterable(lists)))
        if not self._look(asked.address):
            return []
        types = iter(columns.types)
        return [list(islice(types, len(params))) for params in lists]

    def inquiry(self, kernel: Kernel, table: Table) -> Inquiry:
        """What has a table filled and taken through its kernel, but for where its tensors are."""
        step = kernel.parts[0]
        assert step is not None  # only a kernel with matrix words has parts with nothing to do
        return Inquiry(
            table,
            layout=ctypes.pointer(self._layout_for(kernel)),
            streams=kernel.streams,
            kernel=ctypes.cast(step, c_void_p),
            table=ctypes.addressof(table.struct),
        )

    def _layout_for(self, kernel: Kernel) -> Layout:
        """The layout with the types that a kernel knows; of others it reads single numbers only."""
        types = self.layout.types & kernel.types
        if types not in self._layouts:
            self._layouts[types] = Layout.from_buffer_copy(self.layout)
            self._layouts[types].types = types
        return self._layouts[types]


@cache
def reader() -> Reader | None:
    """The reader, or None where it cannot be had, for whatever reason: nothing depends on it."""
    try:
        return Reader()
    except Exception:
        return None


def built() -> Reader | None:
    """The reader, if it takes no compiler to have it."""
    return reader() if is_built() else None


def is_built() -> bool:
    """Tell whether it takes no compiler to have the reader."""
    if reader.cache_info().currsize:
        return True
    try:
        return library_cache.built("tensor_reader", _source()) is not None
    except OSError:
        return False


@cache
def _source() -> str:
    return complete(Path(__file__).with_suffix(".cpp").read_text())


def _check_versions() -> None:
    """Raise an `UnknownLayoutError` where nothing may be measured.

    `OPTGEN_TENSOR_READER` decides if it is set: "0" forbids it, "1" allows it on any torch.
    """
    wish = os.environ.get("OPTGEN_TENSOR_READER")
    if wish == "0":
        raise UnknownLayoutError("switched off")
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise UnknownLayoutError("not CPython with an interpreter lock")
    is_tried = ".".join(torch.__version__.split(".")[:2]) in _TRIED
    if not (wish == "1" or is_tried or trial.passes(_source())):
        raise UnknownLayoutError(f"its trial on torch {torch.__version__} failed")

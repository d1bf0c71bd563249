"""The table a C++ kernel reads: addresses, sizes and types of every stream of every tensor."""

import ctypes
import math
import re
from array import array
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from itertools import chain
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.runtime import layout
from optgen.runtime.private import data_ptr, numel
from optgen.runtime.properties import cols, rows
from optgen.runtime.rule import Lowered, Rule, State

if TYPE_CHECKING:
    from optgen.runtime.fused_cpu.kernel import Kernel
    from optgen.runtime.work import Work

# torch's numbers of the types that kernels know, as kernel.h has them too.
CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
# The parameter's dimensions, matrices, rows and columns.
_SHAPE = 4
# As many streams as a word has four bits for, besides the parameter and its gradient; as many
# fresh keys as a byte has bits.
_STATES, _FRESH = 14, 8
_LOCALS = re.compile(r'optgen_locals = "(.*)"')
_dtype, _size = attrgetter("dtype"), attrgetter("shape")

Copied = list[tuple[Tensor, Tensor]]  # an original, and the copy that was updated in its place


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
    """`Table` of kernel.h and the arrays it points to."""

    def __init__(self, kernel: "Kernel", tensors: int, groups: int) -> None:
        super().__init__(len(kernel.keys), tensors)
        self.kernel = kernel
        self.fresh = array("B", bytes(tensors))
        self.hypers: list[array[float]] = [array("d")] * groups
        self.shape = array("q", bytes(8 * _SHAPE * tensors * kernel.asks_shapes))
        self.works: list[Work] = []
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


def in_stream(bits: int, stream: int) -> int:
    """Four bits at a stream's place in a word that has four of each, the parameter's lowest."""
    return bits << 4 * stream


def excess(rule: Rule, source: str = "") -> str:
    """Return what of a rule does not fit into a row of the table, in a few words; "" if all fits.

    The C++ source names the tensors that matrix words take and make.
    """
    if len(rule.fresh) > _FRESH:
        return f"more than {_FRESH} states ask whether they are fresh"
    like, scalar = shaped_and_scalar(rule)
    states = len(like) + len(scalar)
    if states > _STATES:
        return f"more than {_STATES} states"
    named = _LOCALS.search(source)
    matrices = len(named[1].split()) if named else 0
    return f"more than {_STATES} states and matrices" if states + matrices > _STATES else ""


def shaped_and_scalar(rule: Rule) -> tuple[list[State], list[str]]:
    """The states that have a shape, and the keys of those that are one number."""
    scalar = [state.key for state in rule.states if state.shape == "scalar"]
    like = [state for state in rule.states if state.shape != "scalar"]
    return like, ["step", *scalar] if rule.step else scalar


def gather(
    kernel: "Kernel", works: Sequence["Work"], scaled: bool, copies: bool = False
) -> tuple[Table, Copied]:
    """The table of these tensors, with `copies` of those that are not flat memory side by side.

    Also returned are copies that the kernel changes: a gradient's only if it is `scaled`.
    """
    table = Table(kernel, sum(len(work.params) for work in works), len(works))
    table.has_copies = copies
    copied: Copied = []
    first = 0
    for index, work in enumerate(works):
        table.hypers[index] = kernel.row(kernel.rule.values(work.group))
        _fill(table, first, index, work, copied if copies else None)
        first += len(work.params)
    table.set_hypers()
    read = (t for work in works if copied for t in work.only_read(kernel.rule, scaled))
    kept = set(map(id, read))
    return table, [pair for pair in copied if id(pair[0]) not in kept]


def _fill(table: Table, first: int, index: int, work: "Work", copied: Copied | None) -> None:
    kernel, count = table.kernel, len(work.params)
    last = first + count
    columns = _columns(kernel, work, copied)
    _check(kernel, work.group, columns)
    table.works.append(work)
    table.held.append(columns)
    for stream, column in enumerate(columns):
        if column:
            place = stream * len(table.elements) + first
            table.address[place : place + count] = array("q", list(map(data_ptr, column)))
    table.types[first:last] = _codes(work, columns)
    if "elements" not in work.facts:
        work.facts["elements"] = array("q", list(map(numel, work.params)))
    table.elements[first:last] = work.facts["elements"]
    if kernel.asks_shapes:
        sizes = list(map(_size, work.params))
        one_each = dict(zip(sizes, work.params, strict=True))
        numbers = {size: _shape(param) for size, param in one_each.items()}
        shapes = chain.from_iterable(map(numbers.__getitem__, sizes))
        table.shape[_SHAPE * first : _SHAPE * last] = array("q", list(shapes))
    table.group[first:last] = array("i", [index]) * count
    for bit, key in enumerate(kernel.rule.fresh if work.any_fresh else ()):
        for place, fresh in enumerate(work.fresh[key], first):
            table.fresh[place] |= fresh << bit


def _columns(kernel: "Kernel", work: "Work", copied: Copied | None) -> list[list[Tensor]]:
    """The streams of a work in the order of the table."""
    states = dict(zip((state.key for state in kernel.rule.states), work.states, strict=True))
    states["step"] = work.steps
    columns = [work.params, work.grads, *(states[state.key] for state in kernel.like)]
    if copied is not None:
        columns = _side_by_side(columns, copied, kernel.by_matrix)
    taken = {call.source for call in kernel.calls}
    columns += [
        [torch.empty_like(param) for param in columns[0]] if name in taken else []
        for name in kernel.locals
    ]
    return [*columns, *(states[key] for key in kernel.keys[kernel.streams :])]


def _codes(work: "Work", columns: list[list[Tensor]]) -> "array[int]":
    """The types of all streams: only those of gradients can be others than in the step before."""
    dtypes = list(map(_dtype, columns[1]))
    one = dtypes[0] if dtypes and dtypes.count(dtypes[0]) == len(dtypes) else None
    known: array[int] | None = work.facts.get(f"codes with {one}")
    if known is None or one is None:
        words = [0] * len(dtypes)
        for stream, column in enumerate(columns):
            codes = {dtype: in_stream(code, stream) for dtype, code in CODES.items()}
            if column:
                words = list(map(add, words, map(codes.__getitem__, map(_dtype, column))))
        known = work.facts[f"codes with {one}"] = array("Q", words)
    return known


def check(kernel: "Kernel", work: "Work") -> None:
    """Raise the error that `gather` would raise about the states of a work."""
    _check(kernel, work.group, _columns(kernel, work, None))


def _check(kernel: "Kernel", group: dict[str, Any], columns: list[list[Tensor]]) -> None:
    """The kernel believes a group's flags: without a state they promise it would crash."""
    needed = kernel.needed(group, columns[0][0]) if columns[0] else 0
    for stream, column in enumerate(columns):
        if needed & in_stream(15, stream) and not column:
            raise RuntimeError(
                f"{kernel.rule.name} needs {kernel.keys[stream]!r} with these values of the group, "
                "and its parameters have none"
            )


def _shape(param: Tensor) -> tuple[int, int, int, int]:
    """The dimensions of a parameter, and how many matrices, rows and columns they make."""
    return param.ndim, math.prod(param.shape[:-2]), rows(param), cols(param)


def _side_by_side(
    columns: list[list[Tensor]], copied: Copied, by_matrix: bool
) -> list[list[Tensor]]:
    """The columns of a work, with copies of what is no flat memory beside its parameter."""
    walked = [list(column) for column in columns if column]
    for index in range(len(columns[0])):
        row = [column[index] for column in walked]
        for stream in layout.copies(row, by_matrix):
            copy = layout.copy_of(row[stream].detach(), row[0], by_matrix)
            copied.append((row[stream], copy))
            walked[stream][index] = copy
    present = iter(walked)
    return [next(present) if column else [] for column in columns]

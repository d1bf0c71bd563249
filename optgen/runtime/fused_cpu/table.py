"""The table a C++ kernel reads: addresses, sizes and types of every stream of every tensor."""

import ctypes
import math
from array import array
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from itertools import chain
from operator import add, attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.runtime import layout
from optgen.runtime.fused_cpu import threads
from optgen.runtime.fused_cpu.calls import Call, calls_of
from optgen.runtime.fused_cpu.row import Row
from optgen.runtime.private import data_ptr, numel
from optgen.runtime.properties import cols, rows
from optgen.runtime.rule import Lowered, Rule, State

if TYPE_CHECKING:
    from optgen.runtime.work import Work

# torch's numbers of the types that kernels know, as kernel.h has them too.
CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
# The parameter's dimensions, matrices, rows and columns.
_SHAPE = 4
# As many streams as a word has four bits for, besides the parameter and its gradient; as many
# fresh keys as a byte has bits.
_STATES, _FRESH = 14, 8
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
    ]


class Table:
    """`Table` of kernel.h and the arrays it points to."""

    def __init__(self, kernel: "Kernel", tensors: int, groups: int) -> None:
        self.kernel = kernel
        self.address = array("q", bytes(8 * len(kernel.keys) * tensors))
        self.elements = array("q", bytes(8 * tensors))
        self.types = array("Q", bytes(8 * tensors))
        self.group = array("i", bytes(4 * tensors))
        self.fresh = array("B", bytes(tensors))
        self.hypers: list[array[float]] = [array("d")] * groups
        self.shape = array("q", bytes(8 * _SHAPE * tensors * kernel.asks_shapes))
        self.groups: list[dict[str, Any]] = []
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

    def set_hypers(self) -> None:
        """Lay the groups' rows out for the kernel."""
        self.rows = array("d", chain.from_iterable(self.hypers))
        self.struct.hypers = self.rows.buffer_info()[0]

    def set_scale(self, optimizer: Lowered) -> None:
        """Have gradients divided by what a gradient scaler multiplied them by."""
        scale = getattr(optimizer, "grad_scale", None)
        self._scale = ctypes.c_double(1.0 if scale is None else float(scale))
        self.struct.grad_scale = None if scale is None else ctypes.addressof(self._scale)


class Kernel:
    """A compiled rule: its library, and the streams it takes in the order of the table."""

    def __init__(self, owner: Lowered, library: Path, doubles: bool, source: str) -> None:
        self.rule, self.doubles, self.source = owner.rule, doubles, source
        self.row = Row(owner)
        self.like, self.scalar = _states(owner.rule)
        self._library = ctypes.CDLL(str(library))
        self.asks_shapes = self._fact("optgen_shapes")
        self.by_matrix = self._fact("optgen_by_matrix")
        self.calls = calls_of(self._text("optgen_calls"))
        self.locals = tuple(self._text("optgen_locals").split())
        self.streams = 2 + len(self.like) + len(self.locals)
        # The parameter and its gradient stand first, and in no state; locals in none either.
        unnamed = ("",) * len(self.locals)
        self.keys = ("", "", *(s.key for s in self.like), *unnamed, *self.scalar)
        names = ["optgen_step", *(f"optgen_step_{part}" for part in range(2, len(self.calls) + 2))]
        self.parts = [self._function(name) for name in names]

    def _fact(self, name: str) -> bool:
        return hasattr(self._library, name)

    def _text(self, name: str) -> str:
        """A text of the library; nothing if it has none of that name."""
        if not self._fact(name):
            return ""
        return (ctypes.c_char_p.in_dll(self._library, name).value or b"").decode()

    def _function(self, name: str) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = (c_void_p, c_void_p), None
        return function

    def needed(self, group: dict[str, Any], param: Tensor | None = None) -> int:
        """The streams that the tensors of a group must have: four set bits each.

        With a parameter, what those of its shape must have.
        """
        states = self.rule.states
        present = {s.key for s in states if s.present(group) and (param is None or s.suits(param))}
        present |= {self.keys[0], *self.scalar}
        local = range(2 + len(self.like), self.streams)
        return sum(
            in_stream(15, i) for i, key in enumerate(self.keys) if key in present and i not in local
        )

    def needed_by_shape(self, group: dict[str, Any]) -> tuple[int, int]:
        """The same, for a vector and for a parameter of more dimensions."""
        vector = torch.empty(0, device="cpu")
        return self.needed(group, vector), self.needed(group, vector[None])

    def run(self, table: Table, optimizer: Lowered) -> None:
        """Update all tensors of a table. The interpreter's lock is released in the parts."""
        table.set_scale(optimizer)
        for position, part in enumerate(self.parts):
            if position:
                self._call(self.calls[position - 1], table)
                table.struct.grad_scale = None  # the first part has unscaled the gradients
            part(ctypes.addressof(table.struct), ctypes.addressof(threads.current()))

    def _call(self, call: Call, table: Table) -> None:
        """Do a matrix word, for all tensors of a group at once; other tensors are left out."""
        source, target = (
            2 + len(self.like) + self.locals.index(n) for n in (call.source, call.target)
        )
        first = 0
        for group, columns in zip(table.groups, table.held, strict=True):
            suited = [place for place, param in enumerate(columns[0]) if call.suits(param)]
            columns[target] = list(columns[source])
            made = call(group, [columns[source][place] for place in suited])
            for place, each in zip(suited, made, strict=True):
                columns[target][place] = layout.beside(each, columns[0][place])
            table.set_column(target, first, columns[target])
            first += len(columns[0])


def in_stream(bits: int, stream: int) -> int:
    """Four bits at a stream's place in a word that has four of each, the parameter's lowest."""
    return bits << 4 * stream


def excess(rule: Rule) -> str:
    """Say in a few words what of a rule is too much for a row of the table; nothing if it fits."""
    like, scalar = _states(rule)
    if len(rule.fresh) > _FRESH:
        return f"more than {_FRESH} states ask whether they are fresh"
    return f"more than {_STATES} states" if len(like) + len(scalar) > _STATES else ""


def _states(rule: Rule) -> tuple[list[State], list[str]]:
    """The states that have a shape, and the keys of those that are one number."""
    scalar = [state.key for state in rule.states if state.shape == "scalar"]
    like = [state for state in rule.states if state.shape != "scalar"]
    return like, ["step", *scalar] if rule.step else scalar


def gather(
    kernel: Kernel, works: Sequence["Work"], scaled: bool, copies: bool = False
) -> tuple[Table, Copied]:
    """The table of these tensors, with `copies` of those that are not flat memory side by side.

    Also returned are copies that the kernel changes: a gradient's only if it is `scaled`.
    """
    table = Table(kernel, sum(len(work.params) for work in works), len(works))
    copied: Copied = []
    first = 0
    for index, work in enumerate(works):
        table.hypers[index] = kernel.row(work.group[name] for name in kernel.rule.hypers)
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
    table.groups.append(work.group)
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


def _columns(kernel: Kernel, work: "Work", copied: Copied | None) -> list[list[Tensor]]:
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


def _check(kernel: Kernel, group: dict[str, Any], columns: list[list[Tensor]]) -> None:
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

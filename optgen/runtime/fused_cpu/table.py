"""The table a C++ kernel reads: addresses, sizes and types of every stream of every tensor."""

import ctypes
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
from optgen.runtime.fused_cpu.row import Row
from optgen.runtime.private import is_contiguous
from optgen.runtime.rule import Rule, State

if TYPE_CHECKING:
    from optgen.runtime.collect import Work
    from optgen.runtime.optimizer import GeneratedOptimizer

# torch's numbers of the types that kernels know, as kernel.h has them too.
CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
# As many streams as a word has four bits for, besides the parameter and its gradient; as many
# fresh keys as a byte has bits.
_STATES, _FRESH = 14, 8
_dtype = attrgetter("dtype")
_address = Tensor.data_ptr

Copied = list[tuple[Tensor, Tensor]]  # an original, and the copy that was updated in its place


class _Table(ctypes.Structure):
    _fields_ = [
        ("tensors", c_int64),
        *(
            (name, c_void_p)
            for name in ("address", "elements", "types", "group", "fresh", "hypers", "grad_scale")
        ),
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
        self.held: list[list[list[Tensor]]] = []  # whose addresses stand here, copies among them
        self.struct = _Table(
            tensors,
            *(
                column.buffer_info()[0]
                for column in (self.address, self.elements, self.types, self.group, self.fresh)
            ),
        )

    def set_hypers(self) -> None:
        """Lay the groups' rows out for the kernel."""
        self.rows = array("d", chain.from_iterable(self.hypers))
        self.struct.hypers = self.rows.buffer_info()[0]

    def set_scale(self, optimizer: "GeneratedOptimizer") -> None:
        """Have gradients divided by what a gradient scaler multiplied them by."""
        scale = getattr(optimizer, "grad_scale", None)
        self._scale = ctypes.c_double(1.0 if scale is None else float(scale))
        self.struct.grad_scale = None if scale is None else ctypes.addressof(self._scale)


class Kernel:
    """A compiled rule: its library, and the streams it takes in the order of the table."""

    def __init__(self, cls: "type[GeneratedOptimizer]", library: Path) -> None:
        self.rule = cls.rule
        self.row = Row(cls)
        self.like, self.scalar = _states(cls.rule)
        self.streams = 2 + len(self.like)
        # The parameter and its gradient stand first, and in no state.
        self.keys = ("", "", *(s.key for s in self.like), *self.scalar)
        loaded = ctypes.CDLL(str(library))
        self.step = loaded.optgen_step
        self.step.argtypes = (c_void_p, c_void_p)
        self.step.restype = None
        if cls.rule.gradient != "dense":
            self.step_rows = loaded.optgen_step_rows
            self.step_rows.argtypes = (c_void_p, c_void_p, c_void_p)
            self.step_rows.restype = c_int64

    def needed(self, group: dict[str, Any]) -> int:
        """The streams that the tensors of a group must have: four set bits each."""
        absent = {state.key for state in self.rule.states if not state.present(group)}
        return sum(in_stream(15, i) for i, key in enumerate(self.keys) if key not in absent)

    def run(self, table: Table, optimizer: "GeneratedOptimizer") -> None:
        """Update all tensors of a table. The interpreter's lock is released."""
        table.set_scale(optimizer)
        self.step(ctypes.addressof(table.struct), ctypes.addressof(threads.current()))


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
    """The states of the parameter's shape, and the keys of those that are one number."""
    scalar = [state.key for state in rule.states if state.shape == "scalar"]
    like = [state for state in rule.states if state.shape == "like"]
    return like, ["step", *scalar] if rule.step else scalar


def gather(kernel: Kernel, works: Sequence["Work"], scaled: bool) -> tuple[Table, Copied]:
    """The table of this step's tensors; and what was updated in a copy, as no kernel can walk it.

    Gradients are written to only where they are scaled.
    """
    table = Table(kernel, sum(len(work.params) for work in works), len(works))
    copied: Copied = []
    first = 0
    for index, work in enumerate(works):
        table.hypers[index] = kernel.row(work.group[name] for name in kernel.rule.hypers)
        _fill(table, first, index, work, copied)
        first += len(work.params)
    table.set_hypers()
    grads = set() if scaled else {id(grad) for work in works for grad in work.grads if copied}
    return table, [pair for pair in copied if id(pair[0]) not in grads]


def _fill(table: Table, first: int, index: int, work: "Work", copied: Copied) -> None:
    kernel, count = table.kernel, len(work.params)
    last = first + count
    states = dict(zip((state.key for state in kernel.rule.states), work.states, strict=True))
    states["step"] = work.steps
    columns = _walkable(
        [work.params, work.grads, *(states[state.key] for state in kernel.like)], copied
    )
    columns += [states[key] for key in kernel.keys[kernel.streams :]]
    _check(kernel, work.group, columns)
    table.held.append(columns)
    types, common = [0] * count, 0
    for stream, column in enumerate(columns):
        if not column:
            continue
        place = stream * len(table.elements) + first
        table.address[place : place + count] = array("q", list(map(_address, column)))
        dtypes = list(map(_dtype, column))
        if dtypes.count(dtypes[0]) == count:
            common += in_stream(CODES[dtypes[0]], stream)
        else:
            codes = {dtype: in_stream(code, stream) for dtype, code in CODES.items()}
            types = list(map(add, types, map(codes.__getitem__, dtypes)))
    table.types[first:last] = array("Q", [common + each for each in types])
    table.elements[first:last] = array("q", list(map(Tensor.numel, work.params)))
    table.group[first:last] = array("i", [index]) * count
    for bit, key in enumerate(kernel.rule.fresh):
        for place, fresh in enumerate(work.fresh[key], first):
            table.fresh[place] |= fresh << bit


def _check(kernel: Kernel, group: dict[str, Any], columns: list[list[Tensor]]) -> None:
    """The kernel believes a group's flags: without a state they promise it would crash."""
    needed = kernel.needed(group)
    for stream, column in enumerate(columns):
        if needed & in_stream(15, stream) and not column:
            raise RuntimeError(
                f"{kernel.rule.name} needs {kernel.keys[stream]!r} with these values of the group, "
                "and its parameters have none"
            )


def _walkable(columns: list[list[Tensor]], copied: Copied) -> list[list[Tensor]]:
    """The columns of a work, with copies of what is no flat memory beside its parameter."""
    if any(map(Tensor.is_neg, columns[1])):
        columns = [columns[0], [grad.resolve_neg() for grad in columns[1]], *columns[2:]]
    if all(map(is_contiguous, chain.from_iterable(columns))):
        return columns
    walked = [list(column) for column in columns if column]
    for index in range(len(columns[0])):
        row = [column[index] for column in walked]
        for stream in layout.copies(row):
            copy = layout.copy_of(row[stream].detach(), row[0])
            copied.append((row[stream], copy))
            walked[stream][index] = copy
    present = iter(walked)
    return [next(present) if column else [] for column in columns]

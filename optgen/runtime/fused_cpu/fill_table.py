"""Fill the kernel's table from batches; copy the tensors that cannot be walked in place."""

import math
from array import array
from collections.abc import Sequence
from itertools import chain
from operator import add, attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel_signature import KernelSignature
from optgen.runtime.fused_cpu.stream_codes import CODES, in_stream
from optgen.runtime.fused_cpu.table import SHAPE, Table
from optgen.runtime.tensors import layout
from optgen.runtime.tensors.matrix_shape import cols, rows
from optgen.runtime.torch_private import data_ptr, numel

_dtype, _size = attrgetter("dtype"), attrgetter("shape")

Copied: TypeAlias = list[tuple[Tensor, Tensor]]  # an original, and the copy updated in its place


def fill_table(
    kernel: KernelSignature, batches: Sequence[Batch], scaled: bool, copies: bool = False
) -> tuple[Table, Copied]:
    """The table of these tensors, with `copies` of those that are not flat memory side by side.

    Also returned are copies that the kernel changes: a gradient's only if it is `scaled`.
    """
    table = Table(kernel, sum(len(batch.params) for batch in batches), len(batches))
    table.has_copies = copies
    copied: Copied = []
    first = 0
    for index, batch in enumerate(batches):
        table.hypers[index] = kernel.row(kernel.rule.values(batch.group))
        _fill(table, first, index, batch, copied if copies else None)
        first += len(batch.params)
    table.set_hypers()
    read = (t for batch in batches if copied for t in batch.only_read(kernel.rule, scaled))
    kept = set(map(id, read))
    return table, [pair for pair in copied if id(pair[0]) not in kept]


def _fill(table: Table, first: int, index: int, batch: Batch, copied: Copied | None) -> None:
    kernel, count = table.kernel, len(batch.params)
    last = first + count
    columns = _columns(kernel, batch, copied)
    _check(kernel, batch.group, columns)
    table.batches.append(batch)
    table.held.append(columns)
    for stream, column in enumerate(columns):
        if column:
            place = stream * len(table.elements) + first
            table.address[place : place + count] = array("q", list(map(data_ptr, column)))
    table.types[first:last] = _codes(batch, columns)
    if "elements" not in batch.memo:
        batch.memo["elements"] = array("q", list(map(numel, batch.params)))
    table.elements[first:last] = batch.memo["elements"]
    if kernel.asks_shapes:
        sizes = list(map(_size, batch.params))
        one_each = dict(zip(sizes, batch.params, strict=True))
        numbers = {size: _shape(param) for size, param in one_each.items()}
        shapes = chain.from_iterable(map(numbers.__getitem__, sizes))
        table.shape[SHAPE * first : SHAPE * last] = array("q", list(shapes))
    table.group[first:last] = array("i", [index]) * count
    for bit, key in enumerate(kernel.rule.fresh if batch.any_fresh else ()):
        for place, fresh in enumerate(batch.fresh[key], first):
            table.fresh[place] |= fresh << bit


def _columns(kernel: KernelSignature, batch: Batch, copied: Copied | None) -> list[list[Tensor]]:
    """The streams of a work in the order of the table."""
    states = dict(zip((state.key for state in kernel.rule.states), batch.states, strict=True))
    states["step"] = batch.steps
    columns = [batch.params, batch.grads, *(states[state.key] for state in kernel.like)]
    if copied is not None:
        columns = _side_by_side(columns, copied, kernel.by_matrix)
    taken = {call.source for call in kernel.calls}
    columns += [
        [torch.empty_like(param) for param in columns[0]] if name in taken else []
        for name in kernel.locals
    ]
    return [*columns, *(states[key] for key in kernel.keys[kernel.streams :])]


def _codes(batch: Batch, columns: list[list[Tensor]]) -> "array[int]":
    """The types of all streams: only those of gradients can be others than in the step before."""
    dtypes = list(map(_dtype, columns[1]))
    one = dtypes[0] if dtypes and dtypes.count(dtypes[0]) == len(dtypes) else None
    known: array[int] | None = batch.memo.get(f"codes with {one}")
    if known is None or one is None:
        words = [0] * len(dtypes)
        for stream, column in enumerate(columns):
            codes = {dtype: in_stream(code, stream) for dtype, code in CODES.items()}
            if column:
                words = list(map(add, words, map(codes.__getitem__, map(_dtype, column))))
        known = batch.memo[f"codes with {one}"] = array("Q", words)
    return known


def check(kernel: KernelSignature, batch: Batch) -> None:
    """Raise the error that `gather` would raise about the states of a work."""
    _check(kernel, batch.group, _columns(kernel, batch, None))


def _check(kernel: KernelSignature, group: dict[str, Any], columns: list[list[Tensor]]) -> None:
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
        for stream in layout.streams_to_copy(row, by_matrix):
            copy = layout.copy_like(row[stream].detach(), row[0], by_matrix)
            copied.append((row[stream], copy))
            walked[stream][index] = copy
    present = iter(walked)
    return [next(present) if column else [] for column in columns]

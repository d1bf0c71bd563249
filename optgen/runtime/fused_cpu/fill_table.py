"""Fill a kernel's table from batches; copy the tensors that a kernel cannot update in place."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import add, attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel import KernelSignature, Table
from optgen.runtime.matrix_ops import cols, rows
from optgen.runtime.reader.streams import SHAPE_SIZE, STREAM_BITS, shifted_to_stream
from optgen.runtime.tensors import layout
from optgen.runtime.tensors.quantized import to_numbers
from optgen.runtime.toolchain.dtype_variants import STREAM_DTYPE_CODES
from optgen.runtime.torch_private import data_ptr, numel

_dtype, _shape = attrgetter("dtype"), attrgetter("shape")

CopyPairs: TypeAlias = list[tuple[Tensor, Tensor]]  # an original, and its copy


def fill_table(
    kernel: KernelSignature, batches: Sequence[Batch], unscales: bool, make_copies: bool = False
) -> tuple[Table, CopyPairs]:
    """Return the table of these batches, and the copies that must be written back.

    With `make_copies`, a stream is copied if its memory order differs from its parameter's. The
    copy of a gradient is written back only if the kernel changes it: if the kernel `unscales`
    gradients, or leaves them at zero.
    """
    table = Table(kernel, sum(len(batch.params) for batch in batches), len(batches))
    table.has_copies = make_copies
    changes_gradients = unscales or kernel.rule.zero_grad
    written = (True, changes_gradients, *(state.written for state in kernel.shaped_states))
    copies = _Copies(written)
    first = 0
    for index, batch in enumerate(batches):
        table.hypers[index] = kernel.pack_hypers(kernel.rule.hyper_values(batch.group))
        _fill(table, first, index, batch, copies if make_copies else None)
        first += len(batch.params)
    table.set_hypers()
    return table, copies.pairs


@dataclass
class _Copies:
    """Copies of tensors, and which streams the kernel writes.

    A tensor may be in two streams, one of which only reads it: the copy of the other is its value.
    """

    written: Sequence[bool]  # by streams
    pairs: CopyPairs = field(default_factory=list)  # tensors and copies to write back


def _fill(table: Table, first: int, index: int, batch: Batch, copies: _Copies | None) -> None:
    """Enter the tensors of batch number `index` into the table, from row `first` on.

    With `copies`, copy the tensors that cannot be updated in place, and add them.
    """
    kernel, count = table.kernel, len(batch.params)
    last = first + count
    columns = _columns(kernel, batch, copies)
    _check_states(kernel, batch.group, columns)
    table.batches.append(batch)
    table.columns.append(columns)
    for stream, column in enumerate(columns):
        if column:
            start = stream * len(table.elements) + first
            table.address[start : start + count] = array("q", list(map(data_ptr, column)))
    table.dtypes[first:last] = _dtype_codes(batch, columns)
    if "elements" not in batch.memo:
        batch.memo["elements"] = array("q", list(map(numel, batch.params)))
    table.elements[first:last] = batch.memo["elements"]
    if kernel.has_shapes:
        shapes = list(map(_shape, batch.params))
        examples = dict(zip(shapes, batch.params, strict=True))
        entries_by_shape = {shape: shape_entries(param) for shape, param in examples.items()}
        all_entries = chain.from_iterable(map(entries_by_shape.__getitem__, shapes))
        table.shape[SHAPE_SIZE * first : SHAPE_SIZE * last] = array("q", list(all_entries))
    table.group[first:last] = array("i", [index]) * count
    for bit, key in enumerate(kernel.rule.fresh if batch.any_fresh else ()):
        for row, fresh in enumerate(batch.fresh[key], first):
            table.fresh[row] |= fresh << bit


def _columns(kernel: KernelSignature, batch: Batch, copies: _Copies | None) -> list[list[Tensor]]:
    """Return the streams of a batch in the order of the table."""
    states = dict(zip((state.key for state in kernel.rule.states), batch.states, strict=True))
    states["step"] = batch.step_counts
    columns = [batch.params, batch.grads, *(states[state.key] for state in kernel.shaped_states)]
    if copies is not None:
        columns = _with_copies(kernel, columns, copies)
    operands = {call.source for call in kernel.matrix_calls}
    columns += [
        [torch.empty_like(param) for param in columns[0]] if name in operands else []
        for name in kernel.local_names
    ]
    return [*columns, *(states[key] for key in kernel.keys[kernel.stream_count :])]


def _dtype_codes(batch: Batch, columns: list[list[Tensor]]) -> "array[int]":
    """Return the dtype codes of a batch, one integer for each parameter: see `shifted_to_stream`.

    Between steps, only gradients may change their dtype. So if all gradients have one dtype, the
    batch's memo keeps the codes for this dtype.
    """
    dtypes = list(map(_dtype, columns[1]))
    common_dtype = dtypes[0] if dtypes and dtypes.count(dtypes[0]) == len(dtypes) else None
    packed_codes: array[int] | None = batch.memo.get(f"codes with {common_dtype}")
    if packed_codes is None or common_dtype is None:
        codes_by_param = [0] * len(dtypes)
        for stream, column in enumerate(columns):
            codes = {
                dtype: shifted_to_stream(code, stream) for dtype, code in STREAM_DTYPE_CODES.items()
            }
            if column:
                codes_by_param = list(
                    map(add, codes_by_param, map(codes.__getitem__, map(_dtype, column)))
                )
        packed_codes = batch.memo[f"codes with {common_dtype}"] = array("Q", codes_by_param)
    return packed_codes


def check_states(kernel: KernelSignature, batches: Sequence[Batch]) -> None:
    """Raise the errors that `fill_table` would raise, before any of these batches is updated."""
    for batch in batches:
        _check_states(kernel, batch.group, _columns(kernel, batch, None))


def _check_states(
    kernel: KernelSignature, group: dict[str, Any], columns: list[list[Tensor]]
) -> None:
    """Raise a `RuntimeError` if a state that the group's values require is absent.

    The kernel relies on the values, and would crash without the state.
    """
    needed = kernel.needed_streams(group, columns[0][0]) if columns[0] else 0
    for stream, column in enumerate(columns):
        if needed & shifted_to_stream(STREAM_BITS, stream) and not column:
            raise RuntimeError(
                f"{kernel.rule.name} needs the state {kernel.keys[stream]!r} with these values "
                "of the group, but its parameters do not have this state"
            )


def shape_entries(param: Tensor) -> tuple[int, int, int, int]:
    """Return the numbers of dimensions, matrices, rows and columns of a parameter."""
    return param.ndim, math.prod(param.shape[:-2]), rows(param), cols(param)


def _with_copies(
    kernel: KernelSignature, columns: list[list[Tensor]], copies: _Copies
) -> list[list[Tensor]]:
    """Return the columns, with copies of the tensors that the kernel cannot update in place.

    Their memory order is not their parameter's, or the kernel does not read their codes.
    """
    streams, by_matrix = [list(column) for column in columns if column], kernel.by_matrix
    written = [
        is_written for is_written, column in zip(copies.written, columns, strict=True) if column
    ]
    for index in range(len(columns[0])):
        originals = [column[index] for column in streams]
        row = list(originals if kernel.reads_codes else map(to_numbers, originals))
        for stream in layout.streams_to_copy(row, by_matrix):
            row[stream] = layout.copy_like(row[stream].detach(), row[0], by_matrix)
        for stream, (original, tensor) in enumerate(zip(originals, row, strict=True)):
            if tensor is not original:
                streams[stream][index] = tensor
                if written[stream]:
                    copies.pairs.append((original, tensor))
    present = iter(streams)
    return [next(present) if column else [] for column in columns]

"""Prepare the kernel calls of a gathered step: check batches before anything is written.

The table of a call is filled here, too. But if the call copies tensors or suspends, its table is
filled when the call runs.

A kernel goes over all streams of a parameter as flat memory. It cannot do so if the streams have
different memory formats, or have holes: such streams are copied. The first chunk holds all tensors
that the kernel can update in place. Each further chunk holds a few tensors that are copied, so that
the copies of only a few tensors exist at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import increment_version

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.grad_scaler import must_unscale
from optgen.runtime.batch.sparse_rows import gather_rows
from optgen.runtime.fused_cpu import sparse_gradients
from optgen.runtime.fused_cpu.fill_table import CopyPairs, check_states, fill_table
from optgen.runtime.fused_cpu.kernel import Kernel, Table
from optgen.runtime.fused_cpu.kernel_loader import load_kernel
from optgen.runtime.rule import HasLowerings
from optgen.runtime.sharded.driver import Update
from optgen.runtime.tensors import layout
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.toolchain import dtype_variants
from optgen.runtime.torch_private import is_contiguous, is_neg

PreparedCall = Callable[[], bool]
"""A function that updates its batches; it returns whether a cached step can take the next step."""


def prepare_dense(kernel: Kernel, optimizer: HasLowerings, batches: list[Batch]) -> PreparedCall:
    """Prepare an update of batches with dense gradients and whole parameters."""
    return prepare_chunks(kernel, optimizer, batches, split_into_chunks(kernel, batches))


def prepare_chunks(
    kernel: Kernel, optimizer: HasLowerings, batches: list[Batch], step_chunks: Iterable[Chunk]
) -> PreparedCall:
    """Prepare one kernel call per chunk; return a function that makes all of them."""
    calls = [_prepare_chunk(kernel, optimizer, chunk) for chunk in step_chunks]

    def update() -> bool:
        try:
            had_copies = [call() for call in calls]
        finally:  # if a call fails, those before it have changed their parameters
            for batch in batches:
                _advance_versions(kernel, batch)
        return not any(had_copies)

    return update


def _prepare_chunk(kernel: Kernel, optimizer: HasLowerings, chunk: Chunk) -> Callable[[], bool]:
    """Prepare one kernel call, which returns whether tensors were copied.

    Copies and operands of one chunk of several are made only when the call runs, so that few exist
    at once.
    """
    unscales = must_unscale(optimizer)
    if chunk.needs_copies or chunk.is_one_of_several:
        check_states(kernel, chunk.batches)
        dtype_bits = dtype_variants.bits_of_batches(optimizer.rule, chunk.batches)
        chosen_kernel = _kernel_for(dtype_bits, kernel, optimizer)
        return lambda: _run(
            chosen_kernel,
            optimizer,
            *fill_table(chosen_kernel, chunk.batches, unscales, chunk.needs_copies),
        )
    table, copy_pairs = fill_table(kernel, chunk.batches, unscales)
    dtype_bits = dtype_variants.bits_of_table(table.dtypes, kernel.stream_count)
    chosen_kernel = _kernel_for(dtype_bits, kernel, optimizer)
    return lambda: _run(chosen_kernel, optimizer, table, copy_pairs)


def wide_update(kernel: Kernel, optimizer: HasLowerings, batch: Batch) -> Update:
    """Check a batch; return its update, which waits where the rule reduces over parameters.

    The caller must unscale the gradients before it runs the update.
    """
    from optgen.runtime.fused_cpu.suspending_kernel import SuspendingKernel

    assert isinstance(kernel, SuspendingKernel)
    chunk = single_chunk(kernel, [batch])
    check_states(kernel, chunk.batches)
    dtype_bits = dtype_variants.bits_of_batches(optimizer.rule, chunk.batches)
    chosen_kernel = _kernel_for(dtype_bits, kernel, optimizer)
    assert isinstance(chosen_kernel, SuspendingKernel)

    def update() -> Update:
        table, copy_pairs = fill_table(
            chosen_kernel, chunk.batches, unscales=False, make_copies=chunk.needs_copies
        )
        yield from chosen_kernel.update(table)
        _write_back(copy_pairs)
        _advance_versions(chosen_kernel, batch)

    return update()


def _advance_versions(kernel: Kernel, batch: Batch) -> None:
    """Tell autograd that a kernel has changed parameters, and gradients if it zeroes them."""
    increment_version(batch.params)
    if kernel.rule.zero_grad:
        increment_version(batch.grads)


def _run(kernel: Kernel, optimizer: HasLowerings, table: Table, copy_pairs: CopyPairs) -> bool:
    """Update the tensors of a table and write copies back; return whether tensors were copied."""
    kernel.run(table, optimizer)
    _write_back(copy_pairs)
    return table.has_copies


def _write_back(copy_pairs: CopyPairs) -> None:
    """Write copies back; codes are encoded from numbers."""
    for original, copy in copy_pairs:
        if isinstance(original, QuantizedTensor):
            original.quantize_(copy)
        else:
            original.copy_(copy)


def _kernel_for(dtype_bits: int, kernel: Kernel, optimizer: HasLowerings) -> Kernel:
    """Return the kernel, or a kernel for more dtypes if this kernel does not know all of these."""
    if not dtype_bits & ~kernel.dtype_bits:
        return kernel
    return load_kernel(optimizer, dtype_bits, kernel.suspends)


def prepare_sparse(kernel: Kernel, optimizer: HasLowerings, batches: list[Batch]) -> PreparedCall:
    """Prepare an update of batches, some of which have sparse gradients."""
    sparse_batches = [batch for batch in batches if batch.dispatch_key.sparse_grad]
    rows_function = sparse_gradients.kernel_function(kernel)
    in_place_batches = [
        batch for batch in sparse_batches if rows_function and sparse_gradients.can_take(batch)
    ]
    update_rows = (
        sparse_gradients.prepare(kernel, rows_function, optimizer, in_place_batches)
        if rows_function and in_place_batches
        else None
    )
    copied_rows = [
        gather_rows(optimizer.rule, batch)
        for batch in sparse_batches
        if batch not in in_place_batches
    ]
    dense_batches = [
        *(batch for batch in batches if not batch.dispatch_key.sparse_grad),
        *(each.row_batch for each in copied_rows),
    ]
    update_dense = prepare_dense(kernel, optimizer, dense_batches) if dense_batches else None

    def run() -> bool:
        if update_rows:
            update_rows()  # runs first: it raises an error if an index names no row
        if update_dense:
            update_dense()
        for each in copied_rows:
            each.scatter_rows()
        return not dense_batches  # a cached step takes no dense gradients and copied rows

    return run


# Number of elements of a chunk with copies; a larger tensor has its own chunk. From this number on,
# a second thread makes copying faster.
_CHUNK_ELEMENTS = 1 << 20
# The same for operands and results of matrix ops. Fewer would take more calls.
_MATRIX_CHUNK_ELEMENTS = 1 << 18


class Chunk(NamedTuple):
    """Batches for one kernel call."""

    batches: Sequence[Batch]
    needs_copies: bool = False  # whether some tensors must be copied for the kernel
    is_one_of_several: bool = False  # of a rule whose matrix ops need memory


def split_into_chunks(kernel: Kernel, batches: Sequence[Batch]) -> Iterator[Chunk]:
    """Yield the chunk to update in place, then the chunks that need copies."""
    in_place: list[Batch] = []
    to_copy: list[Batch] = []
    for batch in batches:
        indices = _indices_to_copy(kernel, batch)
        if not indices:
            in_place.append(batch)
        elif (
            kernel.matrix_calls and not batch.has_codes
        ):  # a matrix op is faster on all matrices of one shape at once
            to_copy.append(batch)
        else:
            if in_place_indices := sorted(set(range(len(batch.params))) - set(indices)):
                in_place.append(batch.subset(in_place_indices))
            to_copy += map(batch.subset, _split_by_size(batch, indices, _CHUNK_ELEMENTS))
    elements = sum(param.numel() for batch in in_place for param in batch.params)
    if kernel.matrix_calls and elements > _MATRIX_CHUNK_ELEMENTS:
        for batch in in_place:
            all_indices = range(len(batch.params))
            for indices in _split_by_size(batch, all_indices, _MATRIX_CHUNK_ELEMENTS):
                yield Chunk([batch.subset(indices)], is_one_of_several=True)
    elif in_place:
        yield Chunk(in_place)
    for batch in to_copy:
        yield Chunk([batch], needs_copies=True)


def single_chunk(kernel: Kernel, batches: Sequence[Batch]) -> Chunk:
    """Return all batches in one chunk, for a step that suspends, which is a single kernel call."""
    needs_copies = any(_indices_to_copy(kernel, batch) for batch in batches)
    return Chunk(batches, needs_copies)


def _indices_to_copy(kernel: Kernel, batch: Batch) -> list[int]:
    """Return the indices of the parameters that have a stream to copy."""
    columns = _kernel_columns(kernel, batch)
    is_flat = not batch.noncontiguous_indices and all(map(is_contiguous, batch.grads))
    decodes = batch.has_codes and not kernel.reads_codes
    if is_flat and not decodes and not any(any(map(is_neg, column)) for column in columns):
        return []
    return [
        index
        for index, row in enumerate(zip(*columns, strict=True))
        if layout.streams_to_copy(row, kernel.by_matrix)
        or (decodes and QuantizedTensor in map(type, row))
    ]


def _kernel_columns(kernel: Kernel, batch: Batch) -> list[list[Tensor]]:
    """Return the tensor lists of a batch that a kernel goes over as flat memory."""
    states = zip(kernel.rule.states, batch.states, strict=True)
    shaped = (column for state, column in states if column and state.shape != "scalar")
    return [batch.params, batch.grads, *shaped]


def _split_by_size(batch: Batch, indices: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Split indices into lists, each of a few small tensors or of one large tensor."""
    piece, elements = list[int](), 0
    for index in indices:
        size = batch.params[index].numel()
        if piece and elements + size > limit:
            yield piece
            piece, elements = [], 0
        piece.append(index)
        elements += size
    yield piece

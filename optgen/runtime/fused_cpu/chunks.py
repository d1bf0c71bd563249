"""Split the batches of a step into chunks, one per kernel call.

A kernel goes over all streams of a parameter as flat memory. It cannot do so if the streams have
different memory formats, or have holes: such streams are copied. The first chunk holds all tensors
that the kernel can update in place. Each further chunk holds a few tensors that are copied, so that
the copies of only a few tensors exist at once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.tensors import layout
from optgen.runtime.torch_private import is_contiguous, is_neg

# Number of elements of a chunk with copies; a larger tensor has its own chunk. From this number on,
# a second thread makes copying faster.
_COPIED_ELEMENTS = 1 << 20


class Chunk(NamedTuple):
    """Batches for one kernel call."""

    batches: Sequence[Batch]
    needs_copies: bool = False  # whether some tensors must be copied for the kernel


def split_into_chunks(kernel: Kernel, batches: Sequence[Batch]) -> Iterator[Chunk]:
    """Yield the chunk to update in place, then the chunks that need copies."""
    in_place: list[Batch] = []
    to_copy: list[Batch] = []
    for batch in batches:
        indices = _indices_to_copy(kernel, batch)
        if not indices:
            in_place.append(batch)
        elif kernel.matrix_calls:  # a matrix op is faster on all matrices of one shape at once
            to_copy.append(batch)
        else:
            if in_place_indices := sorted(set(range(len(batch.params))) - set(indices)):
                in_place.append(batch.subset(in_place_indices))
            to_copy += map(batch.subset, _split_by_size(batch, indices))
    if in_place:
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
    if is_flat and not any(any(map(is_neg, column)) for column in columns):
        return []
    return [
        index
        for index, row in enumerate(zip(*columns, strict=True))
        if layout.streams_to_copy(row, kernel.by_matrix)
    ]


def _kernel_columns(kernel: Kernel, batch: Batch) -> list[list[Tensor]]:
    """Return the tensor lists of a batch that a kernel goes over as flat memory."""
    states = zip(kernel.rule.states, batch.states, strict=True)
    shaped = (column for state, column in states if column and state.shape != "scalar")
    return [batch.params, batch.grads, *shaped]


def _split_by_size(batch: Batch, indices: list[int]) -> Iterator[list[int]]:
    """Split indices into lists, each of a few small tensors or of one large tensor."""
    piece, elements = list[int](), 0
    for index in indices:
        size = batch.params[index].numel()
        if piece and elements + size > _COPIED_ELEMENTS:
            yield piece
            piece, elements = [], 0
        piece.append(index)
        elements += size
    yield piece

"""Step a bucket by one call of the kernel, whose table of addresses is made once.

The kernel's call is here. `bucket_pipeline.py` makes it for each bucket.

Gradients and new weights are in slots of the ring, so their addresses change with the slots. All
other addresses stay: a state that someone replaces needs a new table, and its old memory lives as
long as the old table. The parameter's stream is a slot that the kernel writes and does not read.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from torch import Tensor

from optgen.offloading.buckets import Bucket, Piece
from optgen.runtime.fused_cpu.fill_table import shape_entries
from optgen.runtime.fused_cpu.kernel import Kernel, Table
from optgen.runtime.reader.streams import SHAPE_SIZE, STREAM_BITS, shifted_to_stream
from optgen.runtime.tensors.dtensor import to_local
from optgen.runtime.toolchain.dtype_variants import STREAM_DTYPE_CODES
from optgen.runtime.torch_private import Threads, data_ptr, untyped_storage

_PARAM, _GRAD = 0, 1
_NO_GRADIENT = ~shifted_to_stream(STREAM_BITS, _GRAD) & 2**64 - 1


class BucketKernel:
    """The table of a bucket.

    Args:
        kernel: The host's kernel.
        bucket: Pieces whose owners have all their states.
        weights: The pieces' views of each slot for weights.
        gradients: The pieces' views of each place that gradients may be in.
    """

    def __init__(
        self,
        kernel: Kernel,
        bucket: Bucket,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        group_count: int,
    ) -> None:
        self._kernel, self._pieces = kernel, bucket.pieces
        self._count = count = len(bucket.pieces)
        self._weights = [_addresses(views) for views in weights]
        self._gradients = [_addresses(views) for views in gradients]
        self._table = table = Table(kernel, count, group_count)
        table.elements[:] = array("q", [each.count for each in bucket.pieces])
        table.group[:] = array("i", [each.owner.group_index for each in bucket.pieces])
        # A piece that is not the first of its parameter has scalars of its own: otherwise a step
        # would count once for each piece.
        self._copied_cells: list[tuple[Tensor, Tensor]] = []
        codes = [0] * count
        columns = {stream: self._column(key) for stream, key in enumerate(kernel.keys) if key}
        # Someone may let a state go, or give it other memory, while a step that uses it runs.
        self._memory = [
            untyped_storage(each)
            for column in columns.values()
            for each in column
            if each is not None
        ]
        for stream, column in {_PARAM: weights[0], **columns}.items():
            for row, tensor in enumerate(column):
                if tensor is not None:
                    table.address[stream * count + row] = data_ptr(tensor)
                    codes[row] |= _code(tensor, stream)
        self._codes = [
            array("Q", [code | _code(g, _GRAD) for code, g in zip(codes, place, strict=True)])
            for place in gradients
        ]
        if kernel.has_shapes:
            for row, piece in enumerate(bucket.pieces):
                entries = array("q", shape_entries(piece.owner.local))
                table.shape[SHAPE_SIZE * row : SHAPE_SIZE * (row + 1)] = entries

    def _column(self, key: str) -> list[Tensor | None]:
        return [self._state(piece, key) for piece in self._pieces]

    def _state(self, piece: Piece, key: str) -> Tensor | None:
        """Return the memory of a piece's state."""
        value = piece.owner.tensor(key)
        if value is None:
            return None
        local = to_local(value)
        if key not in self._kernel.scalar_keys:
            return piece.of(local)
        if piece.is_first:
            return local
        copy = local.clone()
        self._copied_cells.append((copy, local))
        return copy

    def run(
        self,
        weight_slot: int,
        gradient_place: int,
        stepped: Collection[int],
        hypers: Sequence[array[float]],
        threads: Threads,
    ) -> None:
        """Step the pieces in some rows; write their weights into a slot.

        `hypers` are the hyperparameters of all groups, as the kernel takes them.
        """
        table, count = self._table, self._count
        table.address[:count] = self._weights[weight_slot]
        table.address[count : 2 * count] = self._gradients[gradient_place]
        table.dtypes[:] = self._codes[gradient_place]
        if len(stepped) < count:
            for row in range(count):
                if row not in stepped:
                    table.dtypes[row] &= _NO_GRADIENT
        table.hypers = list(hypers)
        table.set_hypers()
        is_fresh = self._mark_fresh(stepped)
        self._kernel.run_table(table, threads)
        if is_fresh:
            table.fresh[:] = array("B", bytes(count))

    def copy_cells(self) -> None:
        """Give each later piece the scalars of its parameter: all pieces then count alike."""
        for copy, original in self._copied_cells:
            copy.copy_(original)

    def _mark_fresh(self, stepped: Collection[int]) -> bool:
        """Mark the states that this step makes; return whether there are any."""
        any_fresh = False
        for bit, key in enumerate(self._kernel.rule.fresh):
            for row in stepped:
                if key in self._pieces[row].owner.unmade:
                    self._table.fresh[row] |= 1 << bit
                    any_fresh = True
        return any_fresh


def _code(tensor: Tensor, stream: int) -> int:
    """Return the code of a tensor's dtype, in the place of its stream."""
    return shifted_to_stream(STREAM_DTYPE_CODES[tensor.dtype], stream)


def _addresses(views: Sequence[Tensor]) -> array[int]:
    return array("q", list(map(data_ptr, views)))

"""Exchange values of shards with other ranks in a step: sums, values of lines, states of lines.

Sweeps see this rank's shards, and finishes see whole matrices. So sums of shards go from the
workspace of sweeps to that of finishes, and values of this rank's lines come back. Each rank writes
its part of the lines among zeros, and one all_reduce on the device adds up all parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.fused_triton.held_matrices import HeldMatrices, Lines
from optgen.runtime.fused_triton.tensor_streams import StreamTensors
from optgen.runtime.fused_triton.workspace import LineSums, Workspace
from optgen.runtime.sharded.reductions import PartialReduction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Values(NamedTuple):
    """Values of the lines of one tensor's matrices."""

    target: Tensor  # [..., line] of whole matrices
    lines: Lines
    groups: tuple[ProcessGroup, ...]  # of the ranks whose parts are combined
    is_maximum: bool = False  # parts are combined to their maximum, not their sum


class LineExchange:
    """Values of lines of several tensors, and the memory in which ranks combine them."""

    def __init__(self, values: Sequence[Values]) -> None:
        self._targets = [each.target for each in values]
        self._rooms: list[Tensor] = []
        self._held: list[Tensor] = []
        keys = [(each.groups, each.is_maximum) for each in values]
        buffers = {
            key: torch.empty(
                sum(v.target.numel() for v, k in zip(values, keys, strict=True) if k == key),
                dtype=torch.float64,
                device=values[0].target.device,
            )
            for key in dict.fromkeys(keys)
        }
        self._requests = [PartialReduction(buffer, *key) for key, buffer in buffers.items()]
        used = dict.fromkeys(keys, 0)
        for each, key in zip(values, keys, strict=True):
            size = each.target.numel()
            room = buffers[key][used[key] :][:size].view(each.target.shape)
            used[key] += size
            self._rooms.append(room)
            self._held.append(each.lines.held(room))

    def request(self, parts: Sequence[Tensor]) -> list[PartialReduction]:
        """Return requests to combine this rank's parts, in the order of the values."""
        for request in self._requests:
            request.tensor.zero_()
        copy_all(self._held, parts)
        return [request for request in self._requests if request.groups and request.tensor.numel()]

    def finish(self) -> None:
        """Store the completed values in their targets."""
        copy_all(self._targets, self._rooms)


class Completion:
    """Both workspaces of a bucket of shards, and what is copied between them.

    Args:
        held: what this rank holds of each parameter.
        shards: the workspace of sweeps.
        whole: the workspace of finishes.
    """

    def __init__(self, held: Sequence[HeldMatrices], shards: Workspace, whole: Workspace) -> None:
        self._held, self._shards, self._whole = held, shards, whole
        self._exchanges: dict[LineSums, tuple[LineExchange, list[Tensor]]] = {}
        self._values: tuple[list[Tensor], list[Tensor]] | None = None

    def block_sums(
        self, sums: int, maxima: int, groups: tuple[ProcessGroup, ...]
    ) -> list[PartialReduction]:
        """Return requests for the sums and maxima of whole parameters; sweeps have folded theirs.

        `groups` has all groups of ranks that hold shards of the parameters.
        """
        totals = self._whole.folded()
        totals.copy_(self._shards.folded())
        parts = (totals[:, :sums], False), (totals[:, sums:][:, :maxima], True)
        return [PartialReduction(part, groups, is_max) for part, is_max in parts if part.numel()]

    def group_sums(self, first: int, sums: int, maxima: int) -> list[PartialReduction]:
        """Return requests for the sums and maxima over all matrices of each parameter.

        Only ranks with other matrices add to them: ranks that divide a matrix finish it alike.
        """
        requests = []
        for index, each in enumerate(self._held):
            if each.batch_axes:
                totals = self._whole.folded(of_groups=True)[index, first:]
                groups = tuple(axis.group for axis in each.batch_axes)
                parts = (totals[:sums], False), (totals[sums:][:maxima], True)
                requests += [PartialReduction(p, groups, m) for p, m in parts if p.numel()]
        return requests

    def line_sums(self, lines: LineSums) -> tuple[LineExchange, list[Tensor]]:
        """Return the exchange of sums of rows and columns, and this rank's part of each."""
        if lines not in self._exchanges:
            values: list[Values] = []
            parts: list[Tensor] = []
            for index, each in enumerate(self._held):
                if each.rows.size and each.columns.size:  # else there is nothing to add up
                    for_rows, for_columns = self._whole.complete_lines(index, lines)
                    row_sums = self._shards.row_values(index)[lines.first_row :][: lines.rows]
                    columns = self._shards.column_values(index)[lines.first_column :]
                    for totals, part, line, maxima in (
                        (for_rows, row_sums, each.rows, lines.row_maxima),
                        (for_columns, columns[: lines.columns], each.columns, lines.column_maxima),
                    ):
                        found = _sums_and_maxima(totals, part, line, maxima, each.line_groups)
                        values += [value for value, _ in found]
                        parts += [own for _, own in found]
            self._exchanges[lines] = LineExchange(values), parts
        return self._exchanges[lines]

    def store_values(self) -> None:
        """Copy the values of this rank's lines, which a finish has stored, to where sweeps read."""
        if self._values is None:
            targets, sources = [], []
            for index, each in enumerate(self._held):
                targets.append(self._shards.row_values(index))
                sources.append(each.rows.held(self._whole.row_values(index)))
                targets.append(self._shards.column_values(index))
                sources.append(each.columns.held(self._whole.column_values(index)))
                targets.append(self._shards.matrix_values(index))
                sources.append(self._whole.matrix_values(index))
            self._values = targets, sources
        copy_all(*self._values)


def _sums_and_maxima(
    totals: Tensor, part: Tensor, lines: Lines, maxima: int, groups: tuple[ProcessGroup, ...]
) -> list[tuple[Values, Tensor]]:
    """Return the sums of lines, then their maxima, each with this rank's part."""
    sums = len(totals) - maxima
    return [
        (Values(totals[first:end], lines, groups, is_maximum), part[first:end])
        for first, end, is_maximum in ((0, sums, False), (sums, sums + maxima, True))
        if first < end
    ]


class WholeStates:
    """Tensors that hold the row and column states of whole matrices during a step.

    Args:
        held: What this rank holds of each parameter; () if the parameters are no shards.
        streams: The tensors of every stream that is not of scalars.
        shapes: The shape of each stream that is a state, by its index.
    """

    def __init__(
        self, held: Sequence[HeldMatrices], streams: StreamTensors, shapes: Mapping[int, str]
    ) -> None:
        self._values: dict[tuple[int, int], Values] = {}  # by the indices of stream and tensor
        for stream, shape in shapes.items():
            if shape not in ("row", "col") or not streams[stream]:
                continue
            for index, each in enumerate(held):
                lines = each.rows if shape == "row" else each.columns
                if lines.axes:
                    like = streams[stream][index]
                    whole = torch.empty(
                        each.matrices, lines.size, dtype=like.dtype, device=like.device
                    )
                    self._values[stream, index] = Values(whole, lines, lines.groups)
        self._exchange = LineExchange(list(self._values.values())) if self._values else None

    def __contains__(self, key: object) -> bool:
        """Tell whether a tensor is replaced, from the indices of its stream and of the tensor."""
        return key in self._values

    def replace(self, streams: StreamTensors) -> list[Tensor]:
        """Put the tensors for whole matrices in the place of this rank's parts; return the parts.

        The tensors have undefined values until the ranks have answered the requests.
        """
        parts = []
        for (stream, index), values in self._values.items():
            parts.append(streams[stream][index])
            streams[stream][index] = values.target
        return parts

    def request(self, parts: Sequence[Tensor]) -> list[PartialReduction]:
        """Return requests for the states of whole matrices, of which this rank has parts."""
        return self._exchange.request(parts) if self._exchange and parts else []

    def finish(self) -> None:
        """Store the answers to the requests."""
        if self._exchange:
            self._exchange.finish()

    def store(self, parts: Sequence[Tensor]) -> None:
        """Copy what a finish has stored for this rank's lines back to its parts."""
        if parts:
            values = self._values.values()
            copy_all(parts, [each.lines.held(each.target) for each in values])


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, which may have another dtype and other axes."""
    filled = [k for k, target in enumerate(targets) if target.numel()]
    if filled:
        torch._foreach_copy_(
            [targets[k] for k in filled],
            [sources[k].reshape(targets[k].shape) for k in filled],
        )

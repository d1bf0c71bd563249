"""Lead sums of shards from the workspace of sweeps to that of finishes, and values of lines back.

Sweeps have a workspace for this rank's shards, and finishes one for whole matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from optgen.runtime.fused_triton.held_matrices import HeldMatrices, Lines
from optgen.runtime.fused_triton.line_exchange import LineExchange, Values, copy_all
from optgen.runtime.fused_triton.workspace import LineSums, Workspace
from optgen.runtime.sharded.reductions import PartialReduction

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


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

"""Describe what this rank holds of the matrices of a sharded parameter: some rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from optgen.runtime.fused_triton.launch_options import Shape
from optgen.runtime.sharded.driver import AXES, index_in_axes
from optgen.runtime.tensors.sharding import ShardedAxis

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Lines(NamedTuple):
    """Rows, or columns, of a parameter's matrices, and which of them this rank holds."""

    size: int  # of a whole matrix
    axes: tuple[ShardedAxis, ...]  # those that divide the lines, outermost sharding first

    @property
    def groups(self) -> tuple[ProcessGroup, ...]:
        """The groups of ranks that divide the lines."""
        return tuple(axis.group for axis in self.axes)

    def held(self, whole: Tensor) -> Tensor:
        """Return a view of this rank's lines of a tensor whose last axis has all lines."""
        for axis in self.axes:
            sizes = axis.sizes(whole.shape[-1])
            whole = whole.narrow(-1, sum(sizes[: axis.rank]), sizes[axis.rank])
        return whole


class HeldMatrices(NamedTuple):
    """The matrices of a parameter of which this rank holds a piece.

    All its axes but the last two number matrices. A vector is one row.
    """

    size: Sequence[int]  # of the whole parameter
    matrices: int  # of which this rank holds a piece
    rows: Lines
    columns: Lines
    batch_axes: tuple[ShardedAxis, ...]  # those that divide the matrices among ranks

    @classmethod
    def of(
        cls, shard: Tensor, whole_size: Sequence[int], axes: Sequence[ShardedAxis]
    ) -> HeldMatrices:
        """Describe a shard of a parameter; both have the sizes that the rule sees.

        Args:
            shard: this rank's shard.
            whole_size: the size of the whole parameter.
            axes: how the parameter is sharded, outermost sharding first.
        """
        whole = Shape.of_size(whole_size)
        of_axis: dict[str, list[ShardedAxis]] = {name: [] for name in AXES}
        for axis in axes:
            of_axis[AXES[index_in_axes(axis.dim, len(whole_size))]].append(axis)
        batch, rows, columns = map(tuple, of_axis.values())
        lines = Lines(whole.rows, rows), Lines(whole.columns, columns)
        return cls(whole_size, Shape.of(shard).matrices, *lines, batch)

    @property
    def shape(self) -> Shape:
        """The shape of these matrices, each of them whole."""
        return Shape(self.matrices, self.rows.size, self.columns.size)

    @property
    def line_groups(self) -> tuple[ProcessGroup, ...]:
        """The groups of ranks that divide rows or columns: each has partial sums of lines."""
        return self.rows.groups + self.columns.groups

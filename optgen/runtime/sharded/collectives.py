"""The requests of a generated step over shards: for reductions, and for whole matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from optgen.runtime.sharded.all_to_all import Gather, Scatter
from optgen.runtime.sharded.reductions import PartialReduction
from optgen.runtime.tensors.sharding import ShardedAxis

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

AXES = ("batch", "rows", "cols")
"""The axes that a reduction may go over: a parameter's matrices, their rows, their columns."""


def index_in_axes(dim: int, num_dims: int) -> int:
    """Return the index in AXES of dimension `dim` of a parameter with `num_dims` dimensions."""
    return max(0, dim - num_dims + len(AXES))


class Collectives:
    """Requests of one bucket, whose sharded parameters all have one shape.

    Args:
        whole: the first parameter, a DTensor; its sizes are those of the whole parameter.
        sharded_axes: how each parameter is sharded, outermost sharding first.
    """

    def __init__(self, whole: Tensor, sharded_axes: tuple[ShardedAxis, ...]) -> None:
        self.whole, self.sharded_axes = whole, sharded_axes
        self._gathered: Gather | None = None

    def sum(self, partial: Tensor, *axes: str) -> PartialReduction:
        """Request the sum of the ranks' partial sums along these AXES; without AXES, along all."""
        return PartialReduction(partial, self.groups(*axes))

    def max(self, partial: Tensor, *axes: str) -> PartialReduction:
        """Request the maximum of the ranks' maxima along these AXES; without AXES, along all."""
        return PartialReduction(partial, self.groups(*axes), is_maximum=True)

    def groups(self, *axes: str) -> tuple[ProcessGroup, ...]:
        """Return the groups of ranks that shard these AXES; without AXES, any axis."""
        axis_names = axes or AXES
        return tuple(
            each.group for each in self.sharded_axes if self._axis_name(each) in axis_names
        )

    def gather(self, tensors: Sequence[Tensor]) -> Gather:
        """Request the whole matrices that this rank is to compute with.

        Args:
            tensors: this rank's shards of tensors that have the parameters' shape.
        """
        matrix_axes = tuple(each for each in self.sharded_axes if self._axis_name(each) != "batch")
        whole_shape = (*tensors[0].shape[:-2], *self.whole.shape[-2:])
        self._gathered = Gather(tensors, whole_shape, matrix_axes)
        return self._gathered

    def scatter(self, results: Sequence[Tensor]) -> Scatter:
        """Request this rank's shards of the results computed from the tensors gathered last."""
        assert self._gathered is not None
        return Scatter(results, self._gathered)

    def _axis_name(self, axis: ShardedAxis) -> str:
        return AXES[index_in_axes(axis.dim, self.whole.dim())]

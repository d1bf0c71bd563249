"""The collectives that a generated step over shards asks for: reductions and whole matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from optgen.runtime.sharded.all_reduce import PartialReduction
from optgen.runtime.sharded.matrix_requests import Gather, Scatter
from optgen.runtime.tensors.sharding import ShardedAxis

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

AXES = ("batch", "rows", "cols")
"""The axes that a reduction may go over: a parameter's matrices, their rows, their columns."""


def index_in_axes(dim: int, dimensions: int) -> int:
    """Return the index in AXES of dimension `dim` of a parameter that has `dimensions` of them."""
    return max(0, dim - dimensions + len(AXES))


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
        """Ask for the sum of all ranks' partial sums over these axes; without axes, over all."""
        return PartialReduction(partial, self.groups(*axes))

    def max(self, partial: Tensor, *axes: str) -> PartialReduction:
        """Ask for the largest of all ranks' maxima over these axes; without axes, over all."""
        return PartialReduction(partial, self.groups(*axes), largest=True)

    def groups(self, *axes: str) -> tuple[ProcessGroup, ...]:
        """Return the groups of ranks over which these axes are sharded; without axes, over all."""
        names = axes or AXES
        return tuple(each.group for each in self.sharded_axes if self._axis_name(each) in names)

    def gather(self, tensors: Sequence[Tensor]) -> Gather:
        """Ask for the whole matrices that this rank is to compute with.

        Args:
            tensors: this rank's shards of tensors that have the parameters' shape.
        """
        matrix_axes = tuple(each for each in self.sharded_axes if self._axis_name(each) != "batch")
        whole = (*tensors[0].shape[:-2], *self.whole.shape[-2:])
        self._gathered = Gather(tensors, whole, matrix_axes)
        return self._gathered

    def scatter(self, results: Sequence[Tensor]) -> Scatter:
        """Ask for this rank's shards of the results computed from the tensors gathered last."""
        assert self._gathered is not None
        return Scatter(results, self._gathered)

    def _axis_name(self, axis: ShardedAxis) -> str:
        return AXES[index_in_axes(axis.dim, self.whole.dim())]

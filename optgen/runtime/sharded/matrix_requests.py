"""Requests of a step: to send matrices to their owners, and shards of the results back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from optgen.runtime.tensors.sharding import ShardedAxis

Shape = tuple[int, ...]
Coordinates = tuple[int, ...]  # of a rank: its rank in the group of each sharded axis


class Gather:
    """A request for the whole matrices that this rank owns, in order.

    Args:
        shards: this rank's shard of each matrix; all have one shape and dtype.
        shape: the shape of a whole matrix.
        sharded_axes: the sharded axes that are gathered, outermost sharding first.
        leader: another request of the same step, with the same owners. The leader's tensors are
            sharded over the same groups of ranks, along any axes.
    """

    def __init__(
        self,
        shards: Sequence[Tensor],
        shape: Shape,
        sharded_axes: tuple[ShardedAxis, ...],
        leader: Gather | None = None,
    ) -> None:
        self.shards, self.sharded_axes, self.leader = shards, sharded_axes, leader
        self.shapes = [shape]  # of a whole matrix, then of this rank's data after each sharding
        for axis in sharded_axes:
            shape = resized(shape, axis.dim, axis.sizes(shape[axis.dim])[axis.rank])
            self.shapes.append(shape)
        self.owners: list[Coordinates] = []  # one for each matrix

    @property
    def owned_indices(self) -> list[int]:
        """The indices of the matrices that this rank owns."""
        own_coordinates = tuple(axis.rank for axis in self.sharded_axes)
        return [index for index, owner in enumerate(self.owners) if owner == own_coordinates]


class Scatter:
    """A request for this rank's shards of the results that owners computed from matrices."""

    def __init__(self, results: Sequence[Tensor], gathered: Gather) -> None:
        self.gathered = gathered
        # Results travel in the shards' dtype, the only one that a rank without matrices knows.
        self.results = [matrix.to(gathered.shards[0].dtype) for matrix in results]


def resized(shape: Shape, dim: int, size: int) -> Shape:
    """Return a shape with another size in one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])

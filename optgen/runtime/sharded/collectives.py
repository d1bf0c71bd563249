"""How parameters of one shape are split over processes, and what a step must ask the others for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from optgen.runtime.sharded.all_reduce import Partial
from optgen.runtime.sharded.all_to_all import Gather, Scatter
from optgen.runtime.tensors.sharding import ShardedAxis

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

AXES = ("batch", "rows", "cols")
"""What a sum may go over: the matrices of a parameter, their rows, their columns."""


def place_of(axis: int, dimensions: int) -> int:
    """Which of AXES an axis of a parameter of so many dimensions is."""
    return max(0, axis - dimensions + len(AXES))


class Collectives:
    """How the parameters of a bucket, all of one shape, are split over processes.

    Args:
        whole: the first of them, a DTensor; its sizes are those of the whole parameter.
        cuts: how each is cut, the first cut first.
    """

    def __init__(self, whole: Tensor, cuts: tuple[ShardedAxis, ...]) -> None:
        self.whole, self.cuts = whole, cuts
        self._gathered: Gather | None = None

    def sum(self, partial: Tensor, *axes: str) -> Partial:
        """What a sum over these axes of a parameter needs to be complete; without any, over all."""
        return Partial(partial, self.groups(*axes))

    def max(self, partial: Tensor, *axes: str) -> Partial:
        """The same for a maximum of magnitudes."""
        return Partial(partial, self.groups(*axes), largest=True)

    def groups(self, *axes: str) -> tuple[ProcessGroup, ...]:
        """The groups of ranks among which these axes are cut; without any, those of all axes."""
        taken = axes or AXES
        return tuple(cut.group for cut in self.cuts if self._name(cut.axis) in taken)

    def gather(self, tensors: Sequence[Tensor]) -> Gather:
        """Ask for matrices as a whole: those among them that this rank shall compute with.

        Args:
            tensors: this rank's parts of tensors of the parameters' shape.
        """
        cuts = tuple(cut for cut in self.cuts if self._name(cut.axis) != "batch")
        self._gathered = Gather(tensors, self.whole.shape, cuts)
        return self._gathered

    def scatter(self, made: Sequence[Tensor]) -> Scatter:
        """Ask for this rank's parts of what was made of the tensors gathered last."""
        assert self._gathered is not None
        return Scatter(made, self._gathered)

    def _name(self, axis: int) -> str:
        return AXES[place_of(axis, self.whole.dim())]

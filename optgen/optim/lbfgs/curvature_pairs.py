"""Store the last curvature pairs as rows of two matrices: steps, and changes of the gradient."""

import torch
from torch import Tensor

_ALIGNED = 64  # elements: each row begins at a cache line


class Pairs:
    """Two ring buffers of rows. When they are full, a new pair replaces the oldest.

    The matrices grow by doubling, so a short run needs no memory for a long history. One row of
    each is always free. A pair is written to these rows, and belongs to the history only after
    `accept`.
    """

    def __init__(self, capacity: int, like: Tensor) -> None:
        self.capacity = capacity
        self.numel = like.numel()
        self.oldest = 0
        self.count = 0
        stride = -(-self.numel // _ALIGNED) * _ALIGNED
        self.steps, self.changes = like.new_empty((0, stride)), like.new_empty((0, stride))
        self.reserve()

    @property
    def slots(self) -> int:
        """The number of rows, used or free."""
        return len(self.steps)

    def reserve(self) -> None:
        """Grow the matrices if there is no free row after the newest."""
        if self.count == self.slots or not self.slots:
            slots = min(max(16, 2 * self.slots), self.capacity + 1)
            self.steps = self._grown(self.steps, slots)
            self.changes = self._grown(self.changes, slots)

    def _grown(self, rows: Tensor, slots: int) -> Tensor:
        grown = rows.new_empty((slots, rows.shape[1]))
        grown[: len(rows)] = rows
        return grown

    def free_rows(self) -> tuple[Tensor, Tensor]:
        """Return the free rows for the next pair: its step, and the change of the gradient."""
        row = (self.oldest + self.count) % self.slots
        return self.steps[row, : self.numel], self.changes[row, : self.numel]

    def accept(self) -> None:
        """Add the pair in the free rows as the newest."""
        if self.count < self.capacity:
            self.count += 1
            self.reserve()
        else:
            self.oldest = (self.oldest + 1) % self.slots

    def runs(self, matrix: Tensor) -> list[Tensor]:
        """Return the used rows of a matrix, oldest first, as one or two contiguous slices."""
        end = self.oldest + self.count
        pieces = matrix[self.oldest : end], matrix[: max(end - self.slots, 0)]
        return [piece[:, : self.numel] for piece in pieces if len(piece)]

    def rows(self, matrix: Tensor) -> list[Tensor]:
        """Return the used rows of a matrix, oldest first."""
        return [row for run in self.runs(matrix) for row in run.unbind()]

    def versions(self) -> tuple[int, int]:
        """Return torch's version counters, which grow with every write by torch."""
        return self.steps._version, self.changes._version


def dots(runs: list[Tensor], vector: Tensor) -> Tensor:
    """Return the dot products of rows with a vector, in float64 on the CPU."""
    return torch.cat([torch.mv(run, vector) for run in runs]).to("cpu", torch.float64)


def add_rows(vector: Tensor, runs: list[Tensor], weights: Tensor) -> None:
    """Add a weighted sum of rows to a vector, in place."""
    split_weights = weights.to(vector).split([len(run) for run in runs])
    for run, run_weights in zip(runs, split_weights, strict=True):
        vector.addmv_(run.t(), run_weights)

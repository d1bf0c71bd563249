"""The last pairs of a step and the change of the gradient along it, as rows of two matrices."""

import torch
from torch import Tensor

_ALIGNED = 64  # elements: a row begins where a cache line does


class Pairs:
    """Two rings of rows, filled together: a new pair takes the place of the oldest in the end.

    The matrices grow by doubling, so that a short run needs no memory for a long history. One row
    of each is free at any time: a pair is written there, and counts only once it is accepted.
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
        """How many rows there are, in use or not."""
        return len(self.steps)

    def reserve(self) -> None:
        """Make sure that there is a free row after the newest."""
        if self.count == self.slots or not self.slots:
            slots = min(max(16, 2 * self.slots), self.capacity + 1)
            self.steps = self._grown(self.steps, slots)
            self.changes = self._grown(self.changes, slots)

    def _grown(self, rows: Tensor, slots: int) -> Tensor:
        grown = rows.new_empty((slots, rows.shape[1]))
        grown[: len(rows)] = rows
        return grown

    def free(self) -> tuple[Tensor, Tensor]:
        """The rows for the next pair: its step, and the change of the gradient."""
        row = (self.oldest + self.count) % self.slots
        return self.steps[row, : self.numel], self.changes[row, : self.numel]

    def accept(self) -> None:
        """Count the pair in the free rows as the newest."""
        if self.count < self.capacity:
            self.count += 1
            self.reserve()
        else:
            self.oldest = (self.oldest + 1) % self.slots

    def runs(self, matrix: Tensor) -> list[Tensor]:
        """The rows in use of one of the matrices, oldest first: one piece of it, or two."""
        end = self.oldest + self.count
        pieces = matrix[self.oldest : end], matrix[: max(end - self.slots, 0)]
        return [piece[:, : self.numel] for piece in pieces if len(piece)]

    def rows(self, matrix: Tensor) -> list[Tensor]:
        """The rows in use of one of the matrices, oldest first."""
        return [row for run in self.runs(matrix) for row in run.unbind()]

    def versions(self) -> tuple[int, int]:
        """Numbers that grow with every write to a row by an operation of torch."""
        return self.steps._version, self.changes._version


def dots(runs: list[Tensor], vector: Tensor) -> Tensor:
    """The dot products of rows with a vector, in float64 on the CPU."""
    return torch.cat([torch.mv(run, vector) for run in runs]).to("cpu", torch.float64)


def add_rows(vector: Tensor, runs: list[Tensor], weights: Tensor) -> None:
    """Add the weighted sum of rows to a vector."""
    shares = weights.to(vector).split([len(run) for run in runs])
    for run, share in zip(runs, shares, strict=True):
        vector.addmv_(run.t(), share)

"""Store the last curvature pairs as rows of two matrices: steps, and changes of the gradient."""

import torch
from torch import Tensor

_ROW_ALIGNMENT = 64  # elements, so that each row begins at a cache line
_INITIAL_ROWS = 16  # enough for a short run


class CurvaturePairs:
    """Two ring buffers of rows. When they are full, a new pair replaces the oldest.

    The matrices grow by doubling, so a short run needs no memory for a long history. One row of
    each matrix is always free. A pair is written to the free rows, and belongs to the history only
    after `accept`.
    """

    def __init__(self, capacity: int, like: Tensor) -> None:
        self.capacity = capacity
        self.numel = like.numel()
        self.oldest_row = 0
        self.count = 0
        stride = -(-self.numel // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
        self.steps, self.changes = like.new_empty((0, stride)), like.new_empty((0, stride))
        self.reserve()

    @property
    def slots(self) -> int:
        """The number of rows, used or free."""
        return len(self.steps)

    def reserve(self) -> None:
        """Grow the matrices if there is no free row after the newest."""
        if self.count == self.slots or not self.slots:
            slots = min(max(_INITIAL_ROWS, 2 * self.slots), self.capacity + 1)
            self.steps = self._enlarged_matrix(self.steps, slots)
            self.changes = self._enlarged_matrix(self.changes, slots)

    def _enlarged_matrix(self, old: Tensor, slots: int) -> Tensor:
        matrix = old.new_empty((slots, old.shape[1]))
        matrix[: len(old)] = old
        return matrix

    def free_rows(self) -> tuple[Tensor, Tensor]:
        """Return the free rows for the next pair: its step, and the change of the gradient."""
        row = (self.oldest_row + self.count) % self.slots
        return self.steps[row, : self.numel], self.changes[row, : self.numel]

    def accept(self) -> None:
        """Add the pair in the free rows as the newest."""
        if self.count < self.capacity:
            self.count += 1
            self.reserve()
        else:
            self.oldest_row = (self.oldest_row + 1) % self.slots

    def slices(self, matrix: Tensor) -> list[Tensor]:
        """Return the used rows of a matrix, oldest first, as one or two contiguous slices."""
        end = self.oldest_row + self.count
        pieces = matrix[self.oldest_row : end], matrix[: max(end - self.slots, 0)]
        return [piece[:, : self.numel] for piece in pieces if len(piece)]

    def rows(self, matrix: Tensor) -> list[Tensor]:
        """Return the used rows of a matrix, oldest first."""
        return [row for each in self.slices(matrix) for row in each.unbind()]

    def versions(self) -> tuple[int, int]:
        """Return torch's version counters, which grow with every write by torch."""
        return self.steps._version, self.changes._version


def dots(slices: list[Tensor], vector: Tensor) -> Tensor:
    """Return the dot products of the rows of slices with a vector, in float64 on the CPU."""
    return torch.cat([torch.mv(rows, vector) for rows in slices]).to("cpu", torch.float64)


def add_weighted_rows(vector: Tensor, slices: list[Tensor], weights: Tensor) -> None:
    """Add a weighted sum of the rows of slices to a vector, in place."""
    split_weights = weights.to(vector).split([len(rows) for rows in slices])
    for rows, row_weights in zip(slices, split_weights, strict=True):
        vector.addmv_(rows.t(), row_weights)

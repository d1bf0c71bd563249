"""The last few vectors of a sequence as the rows of one matrix."""

import torch
from torch import Tensor


class Ring:
    """A matrix that takes a new row in the place of its oldest, once it has as many as it may.

    It grows by doubling, so that a short run needs no memory for a long history. What goes in and
    comes out per row is oldest first, and in float64 on the CPU, where small systems are solved.
    """

    def __init__(self, capacity: int, like: Tensor) -> None:
        self._capacity = capacity
        self._rows = like.new_empty((0, like.numel()))
        self._oldest = 0
        self._count = 0

    def reserve(self) -> None:
        """Make room for one more row."""
        if self._count == len(self._rows) < self._capacity:
            enough = min(max(16, 2 * self._count), self._capacity)
            grown = self._rows.new_empty((enough, self._rows.shape[1]))
            grown[: self._count] = self._rows
            self._rows = grown

    def next(self) -> Tensor:
        """The row to write the newest vector to; there must be room for it."""
        if self._count < self._capacity:
            self._count += 1
            return self._rows[self._count - 1]
        row = self._rows[self._oldest]
        self._oldest = (self._oldest + 1) % self._capacity
        return row

    def rows(self) -> list[Tensor]:
        """The rows themselves, oldest first."""
        rows = self._rows[: self._count].unbind()
        return [*rows[self._oldest :], *rows[: self._oldest]]

    def version(self) -> int:
        """A number that grows with every write to a row, whoever writes."""
        return self._rows._version

    def dots(self, vector: Tensor) -> Tensor:
        """The dot products of the rows with a vector."""
        dots = torch.mv(self._rows[: self._count], vector)
        return dots.to("cpu", torch.float64).roll(-self._oldest)

    def plus_rows(
        self, vector: Tensor, weights: Tensor, alpha: float, beta: float, out: Tensor
    ) -> Tensor:
        """`beta * vector + alpha * (the sum of the weighted rows)`."""
        weights = weights.roll(self._oldest).to(self._rows)
        rows = self._rows[: self._count].t()
        return torch.addmv(vector, rows, weights, alpha=alpha, beta=beta, out=out)

    def products(self, other: "Ring") -> Tensor:
        """The dot products of all rows with all rows of another ring, neither turned yet."""
        one, two = self._rows[: self._count], other._rows[: other._count]
        return torch.mm(one, two.t()).to("cpu", torch.float64)

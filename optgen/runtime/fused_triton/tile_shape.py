"""Choose the tiles of matrices: the rows and columns that one program of a kernel handles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor

ELEMENTS = 2048
"""Elements of a tile of matrices."""
WIDTH = 128
"""Width of a tile, if matrices have at least WIDTH columns and at least ELEMENTS // WIDTH rows."""


class Shape(NamedTuple):
    """Shape of a tensor as a batch of matrices over its last two axes; a vector is one row."""

    matrices: int
    rows: int
    columns: int

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        return cls.of_size(tensor.shape)

    @classmethod
    def of_size(cls, shape: Sequence[int]) -> Shape:
        if len(shape) < 2:
            return cls(1, 1, prod(shape))
        return cls(prod(shape[:-2]), shape[-2], shape[-1])


class Tile(NamedTuple):
    """Counts of matrices, rows and columns of a tile; several matrices in a tile are whole."""

    matrices: int
    rows: int
    columns: int

    @classmethod
    def of(cls, shape: Shape) -> Tile:
        """Return the tile that matrices of a shape fill best; all tiles have ELEMENTS elements."""
        if not (shape.rows and shape.columns):
            # No program sweeps an empty matrix, so none stores the sums of its rows and columns.
            # With one matrix per tile, the program that finishes the matrix stores them.
            return cls(1, ELEMENTS // WIDTH, WIDTH)
        max_rows, max_columns = (_power_of_two(size) for size in shape[1:])
        columns = min(max_columns, max(WIDTH, ELEMENTS // max_rows))
        while columns < ELEMENTS and ELEMENTS // columns * shape.columns >= 2**31:
            columns *= 2  # inside a tile, kernels compute offsets in 32 bits
        rows = min(max_rows, ELEMENTS // columns)
        return cls(ELEMENTS // (rows * columns), rows, columns)

    def counts(self, shape: Shape) -> tuple[int, int, int]:
        """Return how many tiles cover a tensor of this shape: along matrices, rows and columns."""
        sizes = zip(shape, self, strict=True)
        depth, down, across = (-(-size // tile_size) for size, tile_size in sizes)
        return depth, down, across


def _power_of_two(size: int) -> int:
    """Return the least power of two that is not below a size, but at most ELEMENTS."""
    return min(1 << max(size - 1, 0).bit_length(), ELEMENTS)

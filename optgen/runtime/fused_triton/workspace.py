"""The device memory that phases share: numbers, rows and columns, partial sums, and where they lie.

A rule that reduces runs in phases. What one leaves for the next lies in memory that a bucket gets
once; a second int64 table [row, tensor] holds the shapes and says where each tensor's part begins
(its rows are numbered in `reductions.py`).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.fused_triton.table import Staging, upload

ELEMENTS = 2048
"""Of a tile of matrices."""
WIDTH = 128
"""Of a tile, where the matrices are as wide and have at least ELEMENTS // WIDTH rows."""
CHUNK = 128
"""Rows or columns whose partial sums one program adds up."""
LINES = 1024
"""Rows or columns of a matrix that are finished at a time."""


@dataclass(frozen=True)
class Needs:
    """What the phases of a plan keep for each tensor; a generated module says it."""

    scalars: int  # numbers
    by_matrix: bool = False  # whether sweeps go by matrices, in tiles
    row_values: int = 0
    column_values: int = 0
    matrix_values: int = 0
    sums: int = 0  # the most partial numbers of a sweep
    row_sums: int = 0
    column_sums: int = 0
    parts: int = 0  # the most numbers that programs which finish matrices leave in parts
    locals: tuple[str, ...] = ()  # tensors that sweeps hand to a matrix word, or get from it

    @property
    def in_order(self) -> bool:
        """Whether the elements must lie in the order of their indices."""
        return self.by_matrix or bool(self.locals)


class Shape(NamedTuple):
    """A batch of matrices over a tensor's last two axes; a vector is one row."""

    matrices: int
    rows: int
    columns: int

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        size = tensor.shape
        if len(size) < 2:
            return cls(1, 1, tensor.numel())
        return cls(prod(size[:-2]), size[-2], size[-1])


class Tile(NamedTuple):
    """How many matrices, rows and columns a block takes; several matrices are whole ones."""

    matrices: int
    rows: int
    columns: int

    @classmethod
    def of(cls, shape: Shape) -> Tile:
        """The tile that matrices of this shape fill best; it always has as many elements."""
        high, wide = (_power_of_two(size) for size in shape[1:])
        columns = min(wide, max(WIDTH, ELEMENTS // high))
        rows = min(high, ELEMENTS // columns)
        return cls(ELEMENTS // (rows * columns), rows, columns)

    def counts(self, shape: Shape) -> tuple[int, int, int]:
        """Tiles of such matrices: over the batch, down and across."""
        tiles = zip(shape, self, strict=True)
        batch, down, across = (-(-size // part) for size, part in tiles)
        return batch, down, across


def _lines(tile: Tile | None) -> dict[str, int]:
    """How many matrices, and how many of their rows and columns, a program finishes at a time."""
    if tile is None or tile.matrices == 1:
        return {"DEPTH": 1, "HEIGHT": LINES, "WIDTH": LINES}
    return {"DEPTH": tile.matrices, "HEIGHT": tile.rows, "WIDTH": tile.columns}


def _power_of_two(size: int) -> int:
    return min(1 << max(size - 1, 0).bit_length(), ELEMENTS)


class Workspace:
    """The memory of one bucket, and the tables that lead to it."""

    def __init__(
        self,
        needs: Needs,
        params: Sequence[Tensor],
        tile: Tile | None,
        blocks: Sequence[int],
        compiled: dict[str, Any],
        staging: Staging | None,
    ) -> None:
        device, dtype = params[0].device, params[0].dtype
        self.needs, self._tile, self._staging = needs, tile, staging
        self.numbers = {"num_warps": 4} | compiled
        self.lines = _lines(tile) | {"num_warps": 8} | compiled
        self._shapes = [Shape.of(param) for param in params]
        self._blocks = blocks
        kept = dtype if dtype == torch.float64 else torch.float32
        partials = list(accumulate(map(self._partials, range(len(params))), initial=0))
        values = list(accumulate(map(self._values, self._shapes), initial=0))
        self.scalars = torch.empty(len(params), needs.scalars, dtype=torch.float64, device=device)
        self.partials = torch.empty(partials.pop(), dtype=torch.float64, device=device)
        self.values = torch.empty(values.pop(), dtype=kept, device=device)
        (eps,) = struct.unpack("<q", struct.pack("<d", torch.finfo(dtype).eps))
        groups = list(map(self._groups, self._shapes))
        first_groups, self.group_tensor = self._owners(groups)
        self.groups = self.group_tensor.numel()
        rows = [
            blocks,
            *zip(*self._shapes, strict=True),
            [param.ndim for param in params],
            [eps] * len(params),
            partials,
            values,
            first_groups,
            groups,
        ]
        self.shapes = torch.empty(len(rows), len(params), dtype=torch.int64, device=device)
        upload(self.shapes, array("q", (value for row in rows for value in row)), staging)
        self._chunks: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}

    def chunks(self, sums: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """For `combine`: the first program of every tensor, and the tensor of every program."""
        key = sums, rows, columns
        if key not in self._chunks:
            counts = [
                rows * -(-shape.matrices * shape.rows // CHUNK)
                + columns * -(-shape.matrices * shape.columns // CHUNK)
                + sums
                for shape in self._shapes
            ]
            firsts, owners = self._owners(counts)
            starts = torch.empty(len(firsts), dtype=torch.int64, device=owners.device)
            upload(starts, array("q", firsts), self._staging)
            self._chunks[key] = starts, owners
        return self._chunks[key]

    def _partials(self, index: int) -> int:
        """Partial sums of a tensor, in the sweep that has the most."""
        needs, shape = self.needs, self._shapes[index]
        lines = 0
        if self._tile is not None and self._tile.matrices == 1:
            _, down, across = self._tile.counts(shape)
            lines = needs.row_sums * across * shape.rows + needs.column_sums * down * shape.columns
        swept = lines * shape.matrices + needs.sums * self._blocks[index]
        return max(swept, needs.parts * self._groups(shape))

    def _values(self, shape: Shape) -> int:
        needs = self.needs
        lines = needs.row_values * shape.rows + needs.column_values * shape.columns
        return shape.matrices * (lines + needs.matrix_values)

    def _groups(self, shape: Shape) -> int:
        """Programs that finish a tensor: one for a matrix, or for as many as a block has."""
        if self._tile is None:
            return 1
        return -(-shape.matrices // self._tile.matrices)

    def _owners(self, counts: Sequence[int]) -> tuple[list[int], Tensor]:
        """The first of each tensor's programs, and the tensor of each program."""
        firsts = list(accumulate(counts, initial=0))
        owners = torch.empty(firsts.pop(), dtype=torch.int32, device=self.scalars.device)
        if owners.numel():
            numbers = array("i")
            for tensor, count in enumerate(counts):
                numbers.extend([tensor] * count)
            upload(owners, numbers, self._staging)
        return firsts, owners

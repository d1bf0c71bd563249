"""Allocate the device memory that phases share: row and column values, partial sums.

A rule with reductions runs in phases. A bucket allocates the memory that they share once. A second
int64 table [row, tensor] holds each tensor's shape and its offsets in that memory;
`device_reductions.py` numbers the rows of the table.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime.fused_triton.folds import Folds, fold_options
from optgen.runtime.fused_triton.graph_memory import GraphMemory
from optgen.runtime.fused_triton.held_matrices import HeldMatrices
from optgen.runtime.fused_triton.launch_options import Shape, Tile, compiler_options, number_options
from optgen.runtime.fused_triton.table import allocate, upload
from optgen.runtime.rule import compute_dtype

CHUNK = 128
"""Rows or columns of a matrix whose partial sums one program adds up."""
FINISH_LINES = 1024
"""Rows or columns of a matrix that are finished at once."""


@dataclass(frozen=True)
class WorkspaceSpec:
    """Counts of the numbers that kernels store for each tensor; a generated module lists them."""

    scalars: int  # single numbers, in the compute dtype; in float64 if the rule is in phases
    by_matrix: bool = False  # whether sweeps go by matrices, in tiles
    row_values: int = 0
    column_values: int = 0
    matrix_values: int = 0
    sums: int = 0  # partial sums of a block, in the sweep that has the most
    row_sums: int = 0
    column_sums: int = 0
    draws: bool = False  # whether the rule draws random numbers, by the positions of elements
    parts: int = 0  # partial sums that programs store when they finish matrices
    locals: tuple[str, ...] = ()  # operands and results of matrix ops
    in_phases: bool = False  # whether kernels share more than the scalars

    @property
    def needs_row_major(self) -> bool:
        """Tell whether tensors must be row-major."""
        return self.by_matrix or self.draws or bool(self.locals)


class LineSums(NamedTuple):
    """Partial sums of rows and columns that a sweep has stored, and the slots of their totals."""

    sums: int = 0  # partial sums of a block, which come before those of lines
    rows: int = 0  # sums of each row
    columns: int = 0
    row_maxima: int = 0  # of the sums of each row, the last ones, which are maxima
    column_maxima: int = 0
    row_values: int = 0  # slots of values of rows, which come before those of columns
    first_row: int = 0  # the slot of the first sum among the values of rows
    first_column: int = 0


NO_LINE_SUMS = LineSums()
WHOLE_TILE = Tile(1, 1 << 30, 1 << 30)
"""A tile as large as a matrix: its partial sums are those that the ranks have completed."""


@dataclass(frozen=True)
class Layout:
    """Matrices and blocks of tensors, as kernels see them.

    Args:
        shapes: The tensors as matrices.
        tiles: The tile of each tensor; () if kernels go by blocks of elements.
        block_counts: How many blocks, or tiles, each tensor has.
        sizes: The sizes of the whole parameters.
    """

    shapes: Sequence[Shape]
    tiles: Sequence[Tile]
    block_counts: Sequence[int]
    sizes: Sequence[Sequence[int]]

    @classmethod
    def of_whole(cls, held: Sequence[HeldMatrices], by_matrix: bool) -> Layout:
        """Return the layout of whole matrices: each tensor has one partial sum of each result."""
        shapes = [each.shape for each in held]
        tiles = [WHOLE_TILE] * len(held) if by_matrix else []
        return cls(shapes, tiles, [1] * len(held), [each.size for each in held])


def _finish_options(tiles: Sequence[Tile]) -> dict[str, Any]:
    """Return the tiles of sweeps, and how many matrices, rows and columns are finished at once."""
    finish_tiles = (
        (1, FINISH_LINES, FINISH_LINES) if tile.matrices == 1 else tuple(tile) for tile in tiles
    )
    return {"TILES": tuple(map(tuple, tiles)), "FINISH_TILES": tuple(finish_tiles)}


def _eps_bits(dtype: torch.dtype) -> int:
    """Return the bits of a dtype's machine epsilon, as a float64."""
    (bits,) = struct.unpack("<q", struct.pack("<d", torch.finfo(dtype).eps))
    return int(bits)


class Programs(NamedTuple):
    """Programs of one launch."""

    total: int
    first_programs: Tensor  # for each tensor, the index of its first program
    tensor_indices: Tensor  # for each program, the index of its tensor


class Workspace:
    """Memory that the phases of one bucket share, and the table with its offsets.

    Args:
        spec: What kernels store.
        layout: The tensors as the kernels see them.
        dtype: The dtype of the parameters.
        device: The device of the memory.
        is_amd: Whether the device is one of AMD.
        graph_memory: The memory of a graph capture; None outside one.
        folds_blocks: Whether the partial sums of all blocks of a tensor are folded to one.
        folds_groups: The same for the partial sums of groups of matrices.
    """

    def __init__(
        self,
        spec: WorkspaceSpec,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
        is_amd: bool,
        graph_memory: GraphMemory | None,
        folds_blocks: bool = False,
        folds_groups: bool = False,
    ) -> None:
        block_counts, count = layout.block_counts, len(layout.block_counts)
        self._spec, self._graph_memory, self._block_counts = spec, graph_memory, block_counts
        self._shapes, self._tiles, tiles = layout.shapes, layout.tiles, sorted(set(layout.tiles))
        # Options of launches that fold sums, finish numbers, and finish rows and columns:
        self._fold_options = [
            fold_options(is_amd, to_one) for to_one in (folds_blocks, folds_groups)
        ]
        self.number_options = number_options(is_amd)
        self.line_options = _finish_options(tiles) | {"num_warps": 16} | compiler_options(is_amd)
        value_dtype = compute_dtype(dtype)
        group_counts = list(map(self._group_count, range(count)))
        block_folds = Folds(block_counts, group_counts, spec.sums, folds_blocks)
        group_folds = Folds(group_counts, group_counts, spec.parts, folds_groups)
        sizes = chain(  # of sweeps, and of programs that finish groups of matrices
            map(self._sweep_partial_count, range(count)),
            (spec.parts * count for count in group_counts),
            block_folds.sizes,
            group_folds.sizes,
        )
        offsets = list(accumulate(sizes, initial=0))
        value_offsets = list(accumulate(map(self._value_count, self._shapes), initial=0))
        self.partials = torch.empty(offsets.pop(), dtype=torch.float64, device=device)
        self.values = torch.empty(value_offsets.pop(), dtype=value_dtype, device=device)
        sweep_offsets, part_offsets, *folded = (offsets[k * count :][:count] for k in range(4))
        self._partial_offsets, self._value_offsets = sweep_offsets, value_offsets
        self._first_folded = [each[0] for each in folded]
        first_groups = list(accumulate(group_counts, initial=0))
        self.arrivals = allocate((first_groups.pop(),), torch.int32, device, graph_memory)
        if graph_memory is None:  # the memory of a graph holds zeros, at each replay
            self.arrivals.zero_()
        rows = [  # in the order of the constants in device_reductions.py
            block_counts,
            *zip(*layout.shapes, strict=True),
            list(map(len, layout.sizes)),
            [_eps_bits(dtype)] * count,
            sweep_offsets,
            value_offsets,
            first_groups,
            group_counts,
            [tiles.index(tile) for tile in self._tiles] or [0] * count,
            part_offsets,
            *block_folds.rows(sweep_offsets, folded[0]),
            *group_folds.rows(part_offsets, folded[1]),
            list(map(prod, layout.sizes)),
        ]
        self.shapes = allocate((len(rows), count), torch.int64, device, graph_memory)
        upload(self.shapes, array("q", (value for row in rows for value in row)), graph_memory)
        self._programs: dict[tuple[int, int], Programs] = {}
        self._folds = [self._fold_programs(folds) for folds in (block_folds, group_folds)]

    def folded(self, of_groups: bool = False) -> Tensor:
        """Return the results that are folded to one per tensor, as [tensor, result]."""
        size = len(self._shapes), self._spec.parts if of_groups else self._spec.sums
        return self.partials[self._first_folded[of_groups] :][: prod(size)].view(size)

    def fold_options(self, of_groups: bool) -> dict[str, Any]:
        """Return the options of a launch that folds partial sums of blocks, or of groups."""
        return self._fold_options[of_groups]

    def row_values(self, index: int) -> Tensor:
        """Return the values of a tensor's rows, as [slot, matrix, row]."""
        size = self._spec.row_values, self._shapes[index].matrices, self._shapes[index].rows
        return self.values[self._value_offsets[index] :][: prod(size)].view(size)

    def column_values(self, index: int) -> Tensor:
        """Return the values of a tensor's columns, as [slot, matrix, column]."""
        shape, spec = self._shapes[index], self._spec
        first = self._value_offsets[index] + spec.row_values * shape.matrices * shape.rows
        size = spec.column_values, shape.matrices, shape.columns
        return self.values[first:][: prod(size)].view(size)

    def matrix_values(self, index: int) -> Tensor:
        """Return the numbers of a tensor's matrices, as [slot, matrix]."""
        shape, size = self._shapes[index], (self._spec.matrix_values, self._shapes[index].matrices)
        first = self._value_offsets[index] + self._value_count(shape) - prod(size)
        return self.values[first:][: prod(size)].view(size)

    def complete_lines(self, index: int, lines: LineSums) -> tuple[Tensor, Tensor]:
        """Return room for the completed sums of a whole tensor's rows, and of its columns.

        Both are [sum, matrix, line]. A finish reads them as partial sums of a tile that has all of
        a matrix.
        """
        shape = self._shapes[index]
        first = self._partial_offsets[index] + lines.sums
        size = lines.rows, shape.matrices, shape.rows
        column_size = lines.columns, shape.matrices, shape.columns
        columns = self.partials[first + prod(size) :][: prod(column_size)].view(column_size)
        return self.partials[first:][: prod(size)].view(size), columns

    def tensors(self) -> list[Tensor]:
        """Return the memory on the device, without the programs."""
        return [self.partials, self.values, self.arrivals, self.shapes]

    def programs(self, row_sums: int = 0, column_sums: int = 0) -> Programs:
        """Return the programs that finish matrices, for this many sums per row and per column.

        Before a large matrix is finished, its programs add up the partial sums of its lines.
        """
        key = row_sums, column_sums
        if key not in self._programs:
            counts = []
            for index, shape in enumerate(self._shapes):
                sizes_and_sums = zip(shape[1:], key, strict=True)
                chunk_count = sum(-(-size // CHUNK) * sums for size, sums in sizes_and_sums)
                is_split = self._has_split_matrices(index)
                counts.append(self._group_count(index) * (max(chunk_count, 1) if is_split else 1))
            self._programs[key] = self._make_programs(counts)
        return self._programs[key]

    def _fold_programs(self, folds: Folds) -> Programs | None:
        counts = folds.chunk_counts
        return self._make_programs(counts) if any(counts) else None

    def fold_programs(self, of_groups: bool = False) -> Programs | None:
        """Return the chunks of partial sums that are folded; None if a finish adds up all of them.

        The partial sums are those of blocks of elements, or those of groups of matrices.
        """
        return self._folds[of_groups]

    def _has_split_matrices(self, index: int) -> bool:
        """Tell whether several tiles may contribute to the sums of a matrix's rows and columns."""
        return bool(self._tiles) and self._tiles[index].matrices == 1

    def _sweep_partial_count(self, index: int) -> int:
        """Return the number of partial sums of a tensor, in the sweep that has the most."""
        spec, shape = self._spec, self._shapes[index]
        line_partials = 0
        if self._has_split_matrices(index):
            _, down, across = self._tiles[index].counts(shape)
            line_partials = (
                spec.row_sums * across * shape.rows + spec.column_sums * down * shape.columns
            )
        return spec.sums * self._block_counts[index] + line_partials * shape.matrices

    def _value_count(self, shape: Shape) -> int:
        spec = self._spec
        line_values = spec.row_values * shape.rows + spec.column_values * shape.columns
        return shape.matrices * (line_values + spec.matrix_values)

    def _group_count(self, index: int) -> int:
        """Return the number of groups of a tensor's matrices; one program finishes a group.

        A tensor without matrices has a group too: its program stores the tensor's numbers.
        """
        if not self._tiles:
            return 1
        return max(1, -(-self._shapes[index].matrices // self._tiles[index].matrices))

    def _make_programs(self, program_counts: Sequence[int]) -> Programs:
        """Return the programs of a launch, from the number of programs of each tensor."""
        first_indices = list(accumulate(program_counts, initial=0))
        total, device = first_indices.pop(), self.partials.device
        memory = self._graph_memory
        tensor_indices = allocate((total,), torch.int32, device, memory)
        first_programs = allocate((len(first_indices),), torch.int64, device, memory)
        upload(first_programs, array("q", first_indices), memory)
        if total:
            indices = array("i")
            for index, count in enumerate(program_counts):
                indices.extend([index] * count)
            upload(tensor_indices, indices, memory)
        return Programs(total, first_programs, tensor_indices)

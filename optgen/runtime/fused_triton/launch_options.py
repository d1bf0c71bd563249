"""Choose how a launch divides tensors: blocks of elements or tiles of matrices; warps; options."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

TAIL = 256
"""Elements per iteration of a block that is short, or whose streams are not aligned."""

TAIL_WITH_CODES = 512
"""TAIL for streams with codes: the largest number of elements that share a scale."""

MAX_LINE_SUMS = 2
"""Sums of rows and of columns that fit into registers beside 16 elements of a tile per thread."""


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


def options(
    dtypes: Sequence[torch.dtype | None],
    is_amd: bool,
    tiles: Sequence[Tile] = (),
    line_sums: int = 0,
) -> dict[str, Any]:
    """Return a kernel's block size and compiler options for these dtypes.

    `line_sums` is the number of sums of rows and of columns, in the sweep that has the most.
    """
    itemsize = max(dtype.itemsize for dtype in dtypes if dtype is not None)
    vector = 16 // itemsize  # elements per access of 16 bytes
    # With an explicit limit, NVIDIA's assembler no longer spills registers to fit one more block.
    compile_options = compiler_options(is_amd) | ({} if is_amd else {"maxnreg": 128})
    if tiles:
        # With 16 elements of a tile per thread, twice as many bytes are in flight as with 8.
        warps = 8 if dtypes[0] == torch.float64 else 4
        if line_sums > MAX_LINE_SUMS and not is_amd:
            warps *= 2
        elif warps == 4 and not is_amd:
            compile_options |= {"maxnreg": _tile_registers(itemsize, len(tiles))}
        return {
            "VECTOR": vector,
            "TILES": tuple(map(tuple, tiles)),
            "num_warps": warps,
        } | compile_options
    # A wave of 64 lanes on AMD needs 2048 elements, if each lane loads 16 bytes of 16-bit elements.
    block = 512 if dtypes[0] == torch.float64 else 2048 if is_amd and vector == 8 else 1024
    tail = TAIL_WITH_CODES if torch.int8 in dtypes else TAIL
    sizes = {"VECTOR": vector, "BLOCK": block, "TAIL": tail, "num_warps": 4}
    return sizes | compile_options


def number_options(is_amd: bool) -> dict[str, Any]:
    """Return the options of a launch in which each program combines partial sums of numbers.

    Without a limit of its own, NVIDIA's assembler takes so few registers that each load of a thread
    waits for the one before.
    """
    return {"num_warps": 4} | compiler_options(is_amd) | ({} if is_amd else {"maxnreg": 128})


def _tile_registers(itemsize: int, num_tiles: int) -> int:
    """Return the limit of registers of a thread with 16 elements of a tile, on NVIDIA's devices.

    With fewer registers, more blocks load at once, but Adafactor's sweeps with a gradient scaler
    spill.
    """
    if itemsize == 2:
        return 96 if num_tiles == 1 else 128
    return 128 if num_tiles == 1 else 144


def compiler_options(is_amd: bool) -> dict[str, Any]:
    """Return the compiler's options for exact arithmetic.

    A product and a sum are fused and rounded once; without this option, Triton 3.9 warns. Denormal
    numbers are kept: NVIDIA's functions flush them by default.
    """
    return {"enable_fp_fusion": True} | ({} if is_amd else {"enable_reflect_ftz": False})

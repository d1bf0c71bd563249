"""Choose the block size, the warps and the compiler options of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from optgen.runtime.fused_triton.tile_shape import Tile

TAIL = 256
"""Elements per iteration of a block that is short, or whose streams are not aligned."""

TAIL_WITH_CODES = 512
"""TAIL for streams with codes of 8 bits: the largest number of elements that share a scale."""


MAX_LINE_SUMS = 2
"""Sums of rows and of columns that fit into registers beside 16 elements of a tile per thread."""


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

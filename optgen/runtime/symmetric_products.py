"""Products of matrices with their transposes, as a Triton kernel that computes half of each.

A program computes one tile of one matrix of a batch. It stores the tile and its mirror image; the
programs of tiles above the diagonal end at once. Operands are bfloat16 or float16, sums float32.
This module imports Triton, so `newton_schulz` imports it only where a step is to take it.
"""

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16)
OPTIONS: dict[str, Any] = {"TILE": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}
"""Rows of a tile, columns that are multiplied at once. They fill 96 KiB of shared memory."""


def symmetric_product(
    x: Tensor, source: Tensor | None = None, *, beta: float = 0, alpha: float = 1
) -> Tensor:
    """Return beta source + alpha x x' of a batch of matrices.

    Args:
        x: in bfloat16 or float16, shape [matrices, rows, columns], of any strides.
        source: symmetric and contiguous, in x's dtype, shape [matrices, rows, rows].
        beta: a factor of `source`.
        alpha: a factor of the product.

    Returns:
        A new tensor like `source`, rounded once, whose matrices are exactly symmetric.
    """
    matrices, rows, columns = x.shape
    out = x.new_empty(matrices, rows, rows)
    tiles = triton.cdiv(rows, OPTIONS["TILE"])
    if not out.numel():
        return out
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():  # Triton uses the current one
        compute_tile[(tiles * tiles * matrices,)](
            x,
            out if source is None else source,
            out,
            rows,
            columns,
            *x.stride(),
            beta,
            alpha,
            HAS_SOURCE=source is not None,
            **OPTIONS,
        )
    return out


@triton.jit
def compute_tile(
    x,
    source,
    out,
    rows,
    columns,
    matrix_stride,
    row_stride,
    column_stride,
    beta,
    alpha,
    HAS_SOURCE: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Compute one tile of one product, and store it twice."""
    tiles = tl.cdiv(rows, TILE)
    index = tl.program_id(0)
    top = index % tiles
    left = index // tiles % tiles
    if left <= top:
        matrix = (index // tiles // tiles).to(tl.int64)
        row = (top * TILE + tl.arange(0, TILE)).to(tl.int64)
        mirrored_row = (left * TILE + tl.arange(0, TILE)).to(tl.int64)
        x += matrix * matrix_stride
        products = tl.zeros((TILE, TILE), tl.float32)
        for first in range(0, columns, DEPTH):
            column = (first + tl.arange(0, DEPTH)).to(tl.int64)
            places = row[:, None] * row_stride + column[None, :] * column_stride
            inside = (row < rows)[:, None] & (column < columns)[None, :]
            mirrored = mirrored_row[None, :] * row_stride + column[:, None] * column_stride
            mirrored_inside = (mirrored_row < rows)[None, :] & (column < columns)[:, None]
            products = tl.dot(
                tl.load(x + places, inside, 0.0),
                tl.load(x + mirrored, mirrored_inside, 0.0),
                products,
            )
        result = alpha * products
        inside = (row < rows)[:, None] & (mirrored_row < rows)[None, :]
        first_place = matrix * rows * rows
        place = first_place + row[:, None] * rows + mirrored_row[None, :]
        if HAS_SOURCE:
            result += beta * tl.load(source + place, inside, 0.0).to(tl.float32)
        result = result.to(out.dtype.element_ty)
        tl.store(out + place, result, inside)
        if left < top:
            tl.store(
                out + first_place + mirrored_row[None, :] * rows + row[:, None], result, inside
            )

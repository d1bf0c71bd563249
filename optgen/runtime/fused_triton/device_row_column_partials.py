"""Device functions that combine the partial results of a large matrix's rows, or columns."""

import triton
import triton.language as tl

from optgen.runtime.fused_triton.device_functions import maximum
from optgen.runtime.fused_triton.workspace import CHUNK

PART = tl.constexpr(CHUNK)
"""Rows or columns of a large matrix whose partial sums one program adds up."""
PARTS = tl.constexpr(16)
"""Count of partial sums of every row, or column, that are added at once."""


@triton.jit
def larger(x, y):
    """Combine two values of a maximum reduction."""
    return maximum(x, y)


@triton.jit
def add_lines(partials, sums, start, length, stride, count):
    """Add up `count` partial sums of each of PART rows (or columns), from row `start` on."""
    lanes = start + tl.arange(0, PART)
    total = tl.zeros((PARTS, PART), tl.float64)
    for part in range(0, count, PARTS):
        parts = part + tl.arange(0, PARTS)[:, None]
        mask = (parts < count) & (lanes < length)[None, :]
        total += tl.load(partials + parts.to(tl.int64) * stride + lanes[None, :], mask, 0.0)
    result = tl.sum(total, axis=0).to(sums.dtype.element_ty)
    tl.store(sums + lanes, result, lanes < length)


@triton.jit
def pick_largest_lines(partials, maxima, start, length, stride, count):
    """Pick the largest of `count` partial results of each of PART rows (or columns)."""
    lanes = start + tl.arange(0, PART)
    largest = tl.zeros((PARTS, PART), tl.float64)
    for part in range(0, count, PARTS):
        parts = part + tl.arange(0, PARTS)[:, None]
        mask = (parts < count) & (lanes < length)[None, :]
        results = tl.load(partials + parts.to(tl.int64) * stride + lanes[None, :], mask, 0.0)
        largest = maximum(largest, results)
    result = tl.reduce(largest, 0, larger).to(maxima.dtype.element_ty)
    tl.store(maxima + lanes, result, lanes < length)


@triton.jit
def combine_chunk(
    program,
    partials,
    results,
    matrix,
    length,
    stride,
    count,
    SUMS: tl.constexpr,
    MAXIMA: tl.constexpr,
):
    """Combine one program's chunk of the rows, or of the columns, of a large matrix.

    The last MAXIMA of its SUMS reductions are maxima.
    """
    programs = tl.cdiv(length, PART)
    sum_index = program // programs
    lines = sum_index * stride + matrix * length
    parts = partials + sum_index * (count - 1) * stride + lines
    start = program % programs * PART
    if MAXIMA == 0 or sum_index < SUMS - MAXIMA:
        add_lines(parts, results + lines, start, length, stride, count)
    else:
        pick_largest_lines(parts, results + lines, start, length, stride, count)

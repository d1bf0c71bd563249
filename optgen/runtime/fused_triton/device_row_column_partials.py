"""Device functions that combine the partial results of a large matrix's rows, or columns."""

import triton
import triton.language as tl

from optgen.runtime.fused_triton.device_functions import maximum
from optgen.runtime.fused_triton.workspace import CHUNK

CHUNK_LINES = tl.constexpr(CHUNK)
"""Rows or columns of a large matrix whose partial sums one program adds up."""
PARTIALS_AT_ONCE = tl.constexpr(16)
"""The number of partial sums of each row, or column, that are added at once."""


@triton.jit
def larger(x, y):
    """Combine two values of a maximum reduction."""
    return maximum(x, y)


@triton.jit
def add_lines(partials, sums, start, length, stride, count):
    """Add up `count` partial sums of each of CHUNK_LINES rows or columns, from line `start` on."""
    lanes = start + tl.arange(0, CHUNK_LINES)
    total = tl.zeros((PARTIALS_AT_ONCE, CHUNK_LINES), tl.float64)
    for first in range(0, count, PARTIALS_AT_ONCE):
        indices = first + tl.arange(0, PARTIALS_AT_ONCE)[:, None]
        mask = (indices < count) & (lanes < length)[None, :]
        total += tl.load(partials + indices.to(tl.int64) * stride + lanes[None, :], mask, 0.0)
    result = tl.sum(total, axis=0).to(sums.dtype.element_ty)
    tl.store(sums + lanes, result, lanes < length)


@triton.jit
def pick_largest_lines(partials, maxima, start, length, stride, count):
    """Pick the largest of `count` partial results of each of CHUNK_LINES rows (or columns)."""
    lanes = start + tl.arange(0, CHUNK_LINES)
    largest = tl.zeros((PARTIALS_AT_ONCE, CHUNK_LINES), tl.float64)
    for first in range(0, count, PARTIALS_AT_ONCE):
        indices = first + tl.arange(0, PARTIALS_AT_ONCE)[:, None]
        mask = (indices < count) & (lanes < length)[None, :]
        results = tl.load(partials + indices.to(tl.int64) * stride + lanes[None, :], mask, 0.0)
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

    Of the SUMS reductions of each line, the last MAXIMA are maxima.
    """
    programs = tl.cdiv(length, CHUNK_LINES)
    sum_index = program // programs
    offset = sum_index * stride + matrix * length
    first_partials = partials + sum_index * (count - 1) * stride + offset
    start = program % programs * CHUNK_LINES
    if MAXIMA == 0 or sum_index < SUMS - MAXIMA:
        add_lines(first_partials, results + offset, start, length, stride, count)
    else:
        pick_largest_lines(first_partials, results + offset, start, length, stride, count)

"""What generated Triton kernels share where a rule reduces: sums in float64, in a fixed order.

A block of a sweep leaves partial sums in memory of its own, and whoever reads them adds them up in
the order of the blocks: no atomics, so a step gives the same bits whenever it runs. Imports Triton,
so only generated `fused_triton` modules import it.
"""

import triton
import triton.language as tl

from optgen.runtime.fused_triton.bucket import Bucket
from optgen.runtime.fused_triton.words import maximum
from optgen.runtime.fused_triton.workspace import CHUNK

# The rows of a bucket's second table, which holds what never changes: shapes, and places.
BLOCKS = tl.constexpr(0)  # of a sweep
MATRICES = tl.constexpr(1)
ROWS = tl.constexpr(2)
COLUMNS = tl.constexpr(3)
NDIM = tl.constexpr(4)
EPS = tl.constexpr(5)  # of the parameter's type: the bits of a float64
PARTIALS = tl.constexpr(6)  # where the partial sums of the tensor begin
VALUES = tl.constexpr(7)  # where its rows, columns and numbers of matrices begin
FIRST_GROUP = tl.constexpr(8)  # the first of the programs that finish its matrices
GROUPS = tl.constexpr(9)  # how many they are

TERMS = tl.constexpr(1024)
"""Partial sums of a number that are added at a time."""
PARTS = tl.constexpr(16)
"""Partial sums of every row, or column, that are added at a time."""


@triton.jit
def larger(x, y):
    """What a reduction to the largest does with two of them."""
    return maximum(x, y)


@triton.jit
def kept(x, mask):
    """x in float64, and 0 where no element is."""
    wide = x.to(tl.float64)
    return wide if mask is None else tl.where(mask, wide, 0.0)


@triton.jit
def total(x, mask):
    """The sum of a tile's elements."""
    return tl.sum(kept(x, mask))


@triton.jit
def largest(x, mask):
    """The largest magnitude of a tile's elements; NaN where any is."""
    return tl.reduce(tl.abs(kept(x, mask)), None, larger)


@triton.jit
def row_total(x, mask):
    """The sum of every row of a tile [matrix, row, column]."""
    return tl.sum(kept(x, mask), axis=2)


@triton.jit
def column_total(x, mask):
    """The sum of every column of a tile [matrix, row, column]."""
    return tl.sum(kept(x, mask), axis=1)


@triton.jit
def add_up(partials, count):
    """The sum of so many partial sums."""
    sums = tl.zeros((TERMS,), tl.float64)
    for first in range(0, count, TERMS):
        lanes = first + tl.arange(0, TERMS)
        sums += tl.load(partials + lanes, lanes < count, 0.0)
    return tl.sum(sums)


@triton.jit
def pick_largest(partials, count):
    """The largest of so many."""
    found = tl.zeros((TERMS,), tl.float64)
    for first in range(0, count, TERMS):
        lanes = first + tl.arange(0, TERMS)
        found = maximum(found, tl.load(partials + lanes, lanes < count, 0.0))
    return tl.reduce(found, 0, larger)


@triton.jit
def elements(height, width, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Where the elements of a tile lie, counted from its first, in matrices of this size."""
    matrix = tl.arange(0, DEPTH)[:, None, None] * (height * width)
    row = tl.arange(0, HEIGHT)[None, :, None] * width
    return matrix + row + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def inside(depth, height, width, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Which elements of a tile there are, if so many matrices, rows and columns are left."""
    matrices = tl.arange(0, DEPTH)[:, None, None] < depth
    rows = tl.arange(0, HEIGHT)[None, :, None] < height
    return matrices & rows & (tl.arange(0, WIDTH)[None, None, :] < width)


@triton.jit
def lines(size, DEPTH: tl.constexpr, SIZE: tl.constexpr):
    """Where the rows (or the columns) of a tile lie among those of all matrices of this size."""
    return tl.arange(0, DEPTH)[:, None] * size + tl.arange(0, SIZE)[None, :]


@triton.jit
def lines_inside(depth, size, DEPTH: tl.constexpr, SIZE: tl.constexpr):
    """Which rows (or columns) of a tile there are, if so many matrices and so many are left."""
    return (tl.arange(0, DEPTH)[:, None] < depth) & (tl.arange(0, SIZE)[None, :] < size)


@triton.jit
def add_lines(partials, sums, start, length, count, LANES: tl.constexpr):
    """Add up `count` partial sums of each of `length` rows or columns, from `start` on."""
    lanes = start + tl.arange(0, LANES)
    total = tl.zeros((PARTS, LANES), tl.float64)
    for part in range(0, count, PARTS):
        parts = part + tl.arange(0, PARTS)[:, None]
        mask = (parts < count) & (lanes < length)[None, :]
        total += tl.load(partials + parts.to(tl.int64) * length + lanes[None, :], mask, 0.0)
    result = tl.sum(total, axis=0).to(sums.dtype.element_ty)
    tl.store(sums + lanes, result, lanes < length)


@triton.jit(do_not_specialize=["tensors"])
def combine(
    shapes,
    chunks,
    chunk_tensor,
    scalars,
    values,
    partials,
    tensors,
    FIRST: tl.constexpr,
    SUMS: tl.constexpr,
    LARGEST: tl.constexpr,
    ROW_SUMS: tl.constexpr,
    COLUMN_SUMS: tl.constexpr,
    SCALARS: tl.constexpr,
    ROW_VALUES: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PER_PROGRAM: tl.constexpr,
):
    """Combine what the blocks of a sweep have left: a program for some rows, columns, or a number.

    The sums of rows go where the first row values lie, those of columns where the first column
    values do; the numbers to the tensor's scalars, from FIRST on; LARGEST has a bit for each of
    them that is no sum.
    """
    tensor = tl.load(chunk_tensor + tl.program_id(0))
    shape = shapes + tensor
    chunk = (tl.program_id(0) - tl.load(chunks + tensor)).to(tl.int32)
    depth = tl.load(shape + MATRICES * tensors)
    height = tl.load(shape + ROWS * tensors)
    width = tl.load(shape + COLUMNS * tensors)
    across = tl.cdiv(width, WIDTH).to(tl.int32)
    down = tl.cdiv(height, HEIGHT).to(tl.int32)
    in_rows = tl.cdiv(depth * height, PER_PROGRAM).to(tl.int32)
    in_columns = tl.cdiv(depth * width, PER_PROGRAM).to(tl.int32)
    partials += tl.load(shape + PARTIALS * tensors)
    values += tl.load(shape + VALUES * tensors)
    number = chunk - ROW_SUMS * in_rows - COLUMN_SUMS * in_columns
    if chunk < ROW_SUMS * in_rows:
        which = (chunk // in_rows).to(tl.int64)
        partials += which * across * depth * height
        values += which * depth * height
        start = chunk % in_rows * PER_PROGRAM
        add_lines(partials, values, start, depth * height, across, PER_PROGRAM)
    elif number < 0:
        chunk -= ROW_SUMS * in_rows
        which = (chunk // in_columns).to(tl.int64)
        partials += (ROW_SUMS * across * height + which * down * width) * depth
        values += (ROW_VALUES * height + which * width) * depth
        start = chunk % in_columns * PER_PROGRAM
        add_lines(partials, values, start, depth * width, down, PER_PROGRAM)
    else:
        blocks = tl.load(shape + BLOCKS * tensors)
        partials += (ROW_SUMS * across * height + COLUMN_SUMS * down * width) * depth
        place = partials + number * blocks
        if (LARGEST >> number) & 1 != 0:
            result = pick_largest(place, blocks)
        else:
            result = add_up(place, blocks)
        tl.store(scalars + tensor * SCALARS + FIRST + number, result)


def combine_partials(
    bucket: Bucket, width: int, first: int, sums: int, rows: int, columns: int, largest: int = 0
) -> None:
    """Launch `combine` for so many sums of a sweep; what tiles of whole matrices sum is complete.

    `width` is how many scalars a tensor has, of which the sums go to those from `first` on.
    """
    work, tile = bucket.workspace, bucket.key.tile
    assert tile is not None
    if tile.matrices > 1:
        rows = columns = 0
        if not sums:
            return
    chunks, chunk_tensor = work.chunks(sums, rows, columns)
    combine[(chunk_tensor.numel(),)](
        work.shapes,
        chunks,
        chunk_tensor,
        work.scalars,
        work.values,
        work.partials,
        bucket.tensors,
        FIRST=first,
        SUMS=sums,
        LARGEST=largest,
        ROW_SUMS=rows,
        COLUMN_SUMS=columns,
        SCALARS=width,
        ROW_VALUES=work.needs.row_values,
        HEIGHT=tile.rows,
        WIDTH=tile.columns,
        PER_PROGRAM=CHUNK,
        **work.numbers,
    )

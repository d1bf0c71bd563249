"""What generated Triton kernels share where a rule reduces: sums in float64, in a fixed order.

A block of a sweep leaves partial sums in memory of its own, and whoever reads them adds them up in
the order of the blocks: no atomics, so a step gives the same bits whenever it runs. Imports Triton,
so only generated `fused_triton` modules import it.
"""

import triton
import triton.language as tl

from optgen.runtime.fused_triton.device_functions import maximum
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
FIRST_GROUP = tl.constexpr(8)  # the first group of its matrices that are finished alike
GROUPS = tl.constexpr(9)  # how many they are
TILE_INDEX = tl.constexpr(10)  # which of the bucket's tiles it goes by
GROUP_PARTIALS = tl.constexpr(11)  # where parts that finishes leave of its sums begin

TERMS = tl.constexpr(1024)
"""Partial sums of a number that are added at a time."""
PART = tl.constexpr(CHUNK)
"""Rows or columns of a large matrix whose partial sums one program adds up."""
PARTS = tl.constexpr(16)
"""Partial sums of every row, or column, that are added at a time."""


@triton.jit
def larger(x, y):
    """What a reduction to the largest does with two of them."""
    return maximum(x, y)


@triton.jit
def masked(x, mask):
    """x in float64, and 0 where no element is."""
    wide = x.to(tl.float64)
    return wide if mask is None else tl.where(mask, wide, 0.0)


@triton.jit
def total(x, mask):
    """The sum of a tile's elements."""
    return tl.sum(masked(x, mask))


@triton.jit
def largest(x, mask):
    """The largest magnitude of a tile's elements; NaN where any is."""
    return tl.reduce(tl.abs(masked(x, mask)), None, larger)


@triton.jit
def row_total(x, mask):
    """The sum of every row of a tile [matrix, row, column]."""
    return tl.sum(masked(x, mask), axis=2)


@triton.jit
def column_total(x, mask):
    """The sum of every column of a tile [matrix, row, column]."""
    return tl.sum(masked(x, mask), axis=1)


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
def extents(shape, tensors):
    """How many matrices a tensor has, their rows and their columns."""
    depth = tl.load(shape + MATRICES * tensors)
    height = tl.load(shape + ROWS * tensors)
    return depth, height, tl.load(shape + COLUMNS * tensors)


@triton.jit
def tile_at(block, height, width, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """The first matrix of a tile, and its place among the tiles down and across."""
    across = tl.cdiv(width, WIDTH).to(tl.int32)
    down = tl.cdiv(height, HEIGHT).to(tl.int32)
    matrix = (block // (across * down)).to(tl.int64) * DEPTH
    return matrix, (block // across % down).to(tl.int64), (block % across).to(tl.int64)


@triton.jit
def left_of(size, first, SIZE: tl.constexpr):
    """How much of a tile there is, in one direction."""
    return tl.minimum(size - first, SIZE).to(tl.int32)


@triton.jit
def is_whole(
    left,
    below,
    beside,
    height,
    width,
    VECTOR: tl.constexpr,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Whether a tile lacks no element, and each of its rows begins where an access may."""
    full = (left == DEPTH) & (below == HEIGHT) & (beside == WIDTH)
    return full & (width % VECTOR == 0 if DEPTH == 1 else (height == HEIGHT) & (width == WIDTH))


@triton.jit
def whole_elements(
    height,
    width,
    VECTOR: tl.constexpr,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Where the elements of a whole tile lie, such that the compiler sees which are consecutive."""
    if DEPTH == 1:
        return elements(height, width // VECTOR * VECTOR, DEPTH, HEIGHT, WIDTH)
    return elements(HEIGHT, WIDTH, DEPTH, HEIGHT, WIDTH)


@triton.jit
def add_lines(partials, sums, start, length, stride, count):
    """Add up `count` partial sums of each of `length` rows or columns, from `start` on."""
    lanes = start + tl.arange(0, PART)
    total = tl.zeros((PARTS, PART), tl.float64)
    for part in range(0, count, PARTS):
        parts = part + tl.arange(0, PARTS)[:, None]
        mask = (parts < count) & (lanes < length)[None, :]
        total += tl.load(partials + parts.to(tl.int64) * stride + lanes[None, :], mask, 0.0)
    result = tl.sum(total, axis=0).to(sums.dtype.element_ty)
    tl.store(sums + lanes, result, lanes < length)


@triton.jit
def add_chunk(program, partials, sums, matrix, length, stride, count):
    """Add up one program's share of the rows, or of the columns, of a large matrix."""
    programs = tl.cdiv(length, PART)
    which = program // programs
    lines = which * stride + matrix * length
    parts = partials + which * (count - 1) * stride + lines
    add_lines(parts, sums + lines, program % programs * PART, length, stride, count)


@triton.jit
def is_last(arrived, group, shape, tensors, count):
    """Whether the others of `count` programs have been here: then what they stored can be read."""
    tl.debug_barrier()  # every thread has stored; counting puts that before what the last one reads
    place = arrived + tl.load(shape + FIRST_GROUP * tensors) + group
    last = tl.atomic_add(place, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(place, 0)  # for the next launch
    return last


@triton.jit
def combine(
    program,
    shape,
    values,
    partials,
    tensors,
    SUMS: tl.constexpr,
    ROW_SUMS: tl.constexpr,
    COLUMN_SUMS: tl.constexpr,
    ROW_VALUES: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST_ROW: tl.constexpr = 0,
    FIRST_COLUMN: tl.constexpr = 0,
):
    """Add up what tiles have left of some lines of a large matrix.

    The sums of rows go to its row values from FIRST_ROW on, those of columns to its column values
    from FIRST_COLUMN on. Returns which matrix, and how many programs share it.
    """
    depth, height, width = extents(shape, tensors)
    values += tl.load(shape + VALUES * tensors)
    in_rows = ROW_SUMS * tl.cdiv(height, PART)
    in_all = in_rows + COLUMN_SUMS * tl.cdiv(width, PART)
    programs = tl.maximum(in_all, 1)  # a matrix without a line has one, too
    matrix, program = program // programs, program % programs
    across, down = tl.cdiv(width, WIDTH), tl.cdiv(height, HEIGHT)
    all_rows, all_columns = depth * height, depth * width
    partials += tl.load(shape + PARTIALS * tensors) + SUMS * tl.load(shape + BLOCKS * tensors)
    if program < in_rows:
        values += FIRST_ROW * all_rows
        add_chunk(program, partials, values, matrix, height, all_rows, across)
    elif program < in_all:
        partials += ROW_SUMS * across * all_rows
        values += ROW_VALUES * all_rows + FIRST_COLUMN * all_columns
        add_chunk(program - in_rows, partials, values, matrix, width, all_columns, down)
    return matrix, programs

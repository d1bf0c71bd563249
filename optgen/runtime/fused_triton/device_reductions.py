"""Device functions for reductions in generated Triton kernels: maxima, and sums in fixed order.

Sums are float64. A block of a sweep stores partial sums in its own memory, and the program that
reads them adds them up in the order of the blocks. Nothing is added atomically, so a step gives the
same bits every time it runs. This module imports Triton, so only generated `fused_triton` modules
import it.
"""

import triton
import triton.language as tl

from optgen.runtime.fused_triton.device_functions import maximum
from optgen.runtime.fused_triton.workspace import CHUNK

# Rows of a bucket's second table, which holds constants per tensor: shapes and offsets.
BLOCKS = tl.constexpr(0)  # how many blocks a sweep of the tensor has
MATRICES = tl.constexpr(1)
ROWS = tl.constexpr(2)
COLUMNS = tl.constexpr(3)
NDIM = tl.constexpr(4)
EPS = tl.constexpr(5)  # of the parameter's dtype: the bits of a float64
PARTIALS = tl.constexpr(6)  # offset of the tensor's partial sums
VALUES = tl.constexpr(7)  # offset of its row values, column values and numbers of matrices
FIRST_GROUP = tl.constexpr(8)  # index of its first group of matrices; a program finishes one
GROUPS = tl.constexpr(9)  # how many groups of matrices it has
TILE_SHAPE_INDEX = tl.constexpr(10)  # the index of its tile among the bucket's tiles
GROUP_PARTIALS = tl.constexpr(11)  # offset of partial sums that its groups of matrices store
SUMS = tl.constexpr(12)  # offset of what a finish adds up: partial sums of blocks, or folded ones
SUM_COUNT = tl.constexpr(13)  # how many of them each result has
GROUP_SUMS = tl.constexpr(14)  # the same two of the partial sums that groups of matrices store
GROUP_SUM_COUNT = tl.constexpr(15)
WHOLE_NUMEL = tl.constexpr(16)  # elements of the whole parameter; the tensor may be a shard

TERMS = tl.constexpr(1024)
"""The number of partial sums of one result that are added at once."""
CHUNK_LINES = tl.constexpr(CHUNK)
"""Rows or columns of a large matrix whose partial sums one program adds up."""
PARTIALS_AT_ONCE = tl.constexpr(16)
"""The number of partial sums of each row, or column, that are added at once."""


@triton.jit
def larger(x, y):
    """Combine two values of a maximum reduction."""
    return maximum(x, y)


@triton.jit
def masked(x, mask):
    """Return x in float64, with 0 outside the mask."""
    wide = x.to(tl.float64)
    return wide if mask is None else tl.where(mask, wide, 0.0)


@triton.jit
def total(x, mask):
    """Sum the elements of a tile."""
    return tl.sum(masked(x, mask))


@triton.jit
def magnitudes(x, mask):
    """Return absolute values, with 0 outside the mask; comparisons need no wider dtype."""
    floats = x if x.dtype.is_floating() else x.to(tl.float64)
    return tl.abs(floats) if mask is None else tl.where(mask, tl.abs(floats), 0.0)


@triton.jit
def largest(x, mask):
    """Return the largest magnitude of a tile's elements; NaN if any element is NaN."""
    return tl.reduce(magnitudes(x, mask), None, larger).to(tl.float64)


@triton.jit
def row_total(x, mask):
    """Sum every row of a tile [matrix, row, column]."""
    return tl.sum(masked(x, mask), axis=2)


@triton.jit
def column_total(x, mask):
    """Sum every column of a tile [matrix, row, column]."""
    return tl.sum(masked(x, mask), axis=1)


@triton.jit
def row_largest(x, mask):
    """Return the largest magnitude of every row of a tile [matrix, row, column]."""
    return tl.reduce(magnitudes(x, mask), 2, larger).to(tl.float64)


@triton.jit
def column_largest(x, mask):
    """Return the largest magnitude of every column of a tile [matrix, row, column]."""
    return tl.reduce(magnitudes(x, mask), 1, larger).to(tl.float64)


@triton.jit
def add_up(partials, count):
    """Sum `count` partial sums."""
    lane_sums = tl.zeros((TERMS,), tl.float64)
    whole = count // TERMS * TERMS
    for first in range(0, whole, TERMS):
        lane_sums += tl.load(partials + first + tl.arange(0, TERMS))
    lanes = whole + tl.arange(0, TERMS)
    return tl.sum(lane_sums + tl.load(partials + lanes, lanes < count, 0.0))


@triton.jit
def pick_largest(partials, count):
    """Return the largest of `count` partial results."""
    lane_maxima = tl.zeros((TERMS,), tl.float64)
    whole = count // TERMS * TERMS
    for first in range(0, whole, TERMS):
        lane_maxima = maximum(lane_maxima, tl.load(partials + first + tl.arange(0, TERMS)))
    lanes = whole + tl.arange(0, TERMS)
    rest = tl.load(partials + lanes, lanes < count, 0.0)
    return tl.reduce(maximum(lane_maxima, rest), 0, larger)


@triton.jit
def elements(height, width, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the offsets of a tile's elements from its first one, in matrices of this size."""
    matrix = tl.arange(0, DEPTH)[:, None, None] * (height * width)
    row = tl.arange(0, HEIGHT)[None, :, None] * width
    return matrix + row + tl.arange(0, WIDTH)[None, None, :]


@triton.jit
def inside(depth, height, width, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return the mask of the elements that exist: depth x height x width of the tile."""
    matrices = tl.arange(0, DEPTH)[:, None, None] < depth
    rows = tl.arange(0, HEIGHT)[None, :, None] < height
    return matrices & rows & (tl.arange(0, WIDTH)[None, None, :] < width)


@triton.jit
def lines(size, DEPTH: tl.constexpr, SIZE: tl.constexpr):
    """Return the indices of a tile's rows (or columns) among those of all matrices."""
    return tl.arange(0, DEPTH)[:, None] * size + tl.arange(0, SIZE)[None, :]


@triton.jit
def lines_inside(depth, size, DEPTH: tl.constexpr, SIZE: tl.constexpr):
    """Return the mask of the rows (or columns) that exist: depth x size of the tile."""
    return (tl.arange(0, DEPTH)[:, None] < depth) & (tl.arange(0, SIZE)[None, :] < size)


@triton.jit
def extents(shape, num_tensors):
    """Load the number of matrices of a tensor, of their rows and of their columns."""
    depth = tl.load(shape + MATRICES * num_tensors)
    height = tl.load(shape + ROWS * num_tensors)
    return depth, height, tl.load(shape + COLUMNS * num_tensors)


@triton.jit
def tile_at(block, height, width, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return a tile's first matrix, and the tile's row and column in the grid of tiles."""
    if DEPTH > 1:  # the tile holds whole matrices
        return block.to(tl.int64) * DEPTH, tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    across = tl.cdiv(width, WIDTH).to(tl.uint32)
    down = tl.cdiv(height, HEIGHT).to(tl.uint32)
    block = block.to(tl.uint32)  # a division without signs has fewer instructions
    line = block // across
    matrix = line // down
    column = (block - line * across).to(tl.int64)
    return matrix.to(tl.int64), (line - matrix * down).to(tl.int64), column


@triton.jit
def tile_extent(size, first_line, SIZE: tl.constexpr):
    """Return how many lines of a tile lie inside a tensor of this size along one axis."""
    return tl.minimum(size - first_line, SIZE).to(tl.int32)


@triton.jit
def is_whole(
    remaining_matrices,
    remaining_rows,
    remaining_columns,
    height,
    width,
    VECTOR: tl.constexpr,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Tell whether a tile is complete, and each of its rows is aligned for vector access."""
    is_full = (
        (remaining_matrices == DEPTH) & (remaining_rows == HEIGHT) & (remaining_columns == WIDTH)
    )
    return is_full & (width % VECTOR == 0 if DEPTH == 1 else (height == HEIGHT) & (width == WIDTH))


@triton.jit
def whole_elements(
    height,
    width,
    VECTOR: tl.constexpr,
    DEPTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return the offsets of a complete tile; the compiler can see which are consecutive."""
    if DEPTH == 1:
        return elements(height, width // VECTOR * VECTOR, DEPTH, HEIGHT, WIDTH)
    return elements(HEIGHT, WIDTH, DEPTH, HEIGHT, WIDTH)


@triton.jit
def is_last(arrivals, matrix_group, shape, num_tensors, program_count):
    """Tell whether this program is the last to arrive: it can read what all programs stored."""
    # After the barrier, every thread has stored. The atomic addition orders these stores before
    # the reads of the last program.
    tl.debug_barrier()
    counter = arrivals + tl.load(shape + FIRST_GROUP * num_tensors) + matrix_group
    is_last_program = tl.atomic_add(counter, 1, sem="acq_rel") == program_count - 1
    if is_last_program:
        tl.store(counter, 0)  # for the next launch
    return is_last_program


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


@triton.jit
def combine(
    program,
    shape,
    values,
    partials,
    num_tensors,
    SUMS: tl.constexpr,
    ROW_SUMS: tl.constexpr,
    COLUMN_SUMS: tl.constexpr,
    ROW_VALUES: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST_ROW: tl.constexpr = 0,
    FIRST_COLUMN: tl.constexpr = 0,
    ROW_MAXIMA: tl.constexpr = 0,
    COLUMN_MAXIMA: tl.constexpr = 0,
):
    """Add up the tiles' partial sums of some rows, or columns, of a large matrix.

    The sums of rows become the matrix's row values from FIRST_ROW on. The sums of columns become
    its column values from FIRST_COLUMN on. The last ROW_MAXIMA of the ROW_SUMS and the last
    COLUMN_MAXIMA of the COLUMN_SUMS are maxima over the tiles instead. Return the index of the
    matrix, and how many programs work on it.
    """
    depth, height, width = extents(shape, num_tensors)
    values += tl.load(shape + VALUES * num_tensors)
    in_rows = ROW_SUMS * tl.cdiv(height, CHUNK_LINES)
    in_all = in_rows + COLUMN_SUMS * tl.cdiv(width, CHUNK_LINES)
    programs = tl.maximum(in_all, 1)  # a matrix without lines has one program too
    matrix, program = program // programs, program % programs
    across, down = tl.cdiv(width, WIDTH), tl.cdiv(height, HEIGHT)
    all_rows, all_columns = depth * height, depth * width
    partials += tl.load(shape + PARTIALS * num_tensors) + SUMS * tl.load(
        shape + BLOCKS * num_tensors
    )
    if program < in_rows:
        values += FIRST_ROW * all_rows
        combine_chunk(
            program, partials, values, matrix, height, all_rows, across, ROW_SUMS, ROW_MAXIMA
        )
    elif program < in_all:
        partials += ROW_SUMS * across * all_rows
        values += ROW_VALUES * all_rows + FIRST_COLUMN * all_columns
        program -= in_rows
        combine_chunk(
            program, partials, values, matrix, width, all_columns, down, COLUMN_SUMS, COLUMN_MAXIMA
        )
    return matrix, programs


@triton.jit
def fold_chunk(
    first_programs,
    tensor_indices,
    shapes,
    partials,
    num_tensors,
    FOLD: tl.constexpr,
    RESULTS: tl.constexpr,
    MAXIMA: tl.constexpr = 0,
    OF_GROUPS: tl.constexpr = False,
    FIRST: tl.constexpr = 0,
):
    """Combine a chunk of FOLD partial results of one tensor, as one program.

    Each chunk has RESULTS programs: of the results from FIRST on, the last MAXIMA are maxima. With
    OF_GROUPS, groups of matrices have stored the partial results, and not blocks of elements.
    """
    chunk = tl.program_id(0) // RESULTS
    tensor = tl.load(tensor_indices + chunk)
    chunk -= tl.load(first_programs + tensor)
    shape = shapes + tensor
    count = tl.load(shape + (GROUPS if OF_GROUPS else BLOCKS) * num_tensors)
    chunk_count = tl.load(shape + (GROUP_SUM_COUNT if OF_GROUPS else SUM_COUNT) * num_tensors)
    source = partials + tl.load(shape + (GROUP_PARTIALS if OF_GROUPS else PARTIALS) * num_tensors)
    target = partials + tl.load(shape + (GROUP_SUMS if OF_GROUPS else SUMS) * num_tensors)
    index = tl.program_id(0) % RESULTS
    source += (FIRST + index) * count + chunk * FOLD
    size = tl.minimum(count - chunk * FOLD, FOLD)
    if MAXIMA == 0 or index < RESULTS - MAXIMA:
        result = add_up(source, size)
    else:
        result = pick_largest(source, size)
    tl.store(target + (FIRST + index) * chunk_count + chunk, result)


@triton.jit(do_not_specialize=["num_tensors"])
def fold_lines(
    first_programs,
    tensor_indices,
    shapes,
    values,
    partials,
    num_tensors,
    TILES: tl.constexpr,
    SUMS: tl.constexpr,
    ROW_SUMS: tl.constexpr,
    COLUMN_SUMS: tl.constexpr,
    ROW_VALUES: tl.constexpr,
    FIRST_ROW: tl.constexpr,
    FIRST_COLUMN: tl.constexpr,
    ROW_MAXIMA: tl.constexpr,
    COLUMN_MAXIMA: tl.constexpr,
):
    """Combine the partial sums of the rows and columns of shards, whose finishes see whole lines.

    Tiles of several matrices have stored complete sums.
    """
    tensor = tl.load(tensor_indices + tl.program_id(0))
    program = tl.program_id(0) - tl.load(first_programs + tensor)
    tile_shape_index = tl.load(shapes + TILE_SHAPE_INDEX * num_tensors + tensor)
    for k in tl.static_range(len(TILES)):
        if (tile_shape_index == k) & (TILES[k][0] == 1):
            combine(
                program,
                shapes + tensor,
                values,
                partials,
                num_tensors,
                SUMS,
                ROW_SUMS,
                COLUMN_SUMS,
                ROW_VALUES,
                TILES[k][1],
                TILES[k][2],
                FIRST_ROW,
                FIRST_COLUMN,
                ROW_MAXIMA,
                COLUMN_MAXIMA,
            )

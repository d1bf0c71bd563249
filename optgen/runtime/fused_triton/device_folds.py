"""Device functions that fold partial sums: they add them up in a fixed order."""

import triton
import triton.language as tl

from optgen.runtime.fused_triton.device_reductions import (
    BLOCKS,
    GROUP_PARTIALS,
    GROUP_SUM_COUNT,
    GROUP_SUMS,
    GROUPS,
    PARTIALS,
    SUM_COUNT,
    SUMS,
    TILE_SHAPE_INDEX,
    add_up,
    combine,
    pick_largest,
)


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

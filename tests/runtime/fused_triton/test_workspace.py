"""Test the tiles of matrices, and the workspace that phases share."""

import struct
from array import array
from math import prod

import pytest
import torch

from optgen.runtime.fused_triton.launch_options import ELEMENTS, Shape, Tile
from optgen.runtime.fused_triton.workspace import (
    CHUNK,
    FINISH_LINES,
    Layout,
    Workspace,
    WorkspaceSpec,
)

TILES_BY_SIZE = {  # a tile's matrices, rows and columns
    (4096, 4096): (1, 16, 128),
    (50257, 768): (1, 16, 128),
    (512, 512, 3, 3): (128, 4, 4),
    (64, 3, 7, 7): (32, 8, 8),
    (256, 64, 1, 1): (2048, 1, 1),
    (1000, 3): (1, 512, 4),
    (3, 1000): (1, 4, 512),
    (10, 7, 1, 1000): (2, 1, 1024),
    (5, 100_000): (1, 8, 256),
    (30, 40, 50): (1, 32, 64),
    (0, 3): (1, 16, 128),
    (5, 3, 0): (1, 16, 128),
}


@pytest.mark.parametrize(("size", "tile"), TILES_BY_SIZE.items())
def test_tiles_fit_the_matrices(size: tuple[int, ...], tile: tuple[int, int, int]) -> None:
    shape = Shape.of(torch.empty(size, device="meta"))
    actual = Tile.of(shape)
    assert actual == tile
    assert actual.matrices * actual.rows * actual.columns == ELEMENTS
    if actual.matrices > 1:  # a block of whole matrices has complete reductions
        assert actual.rows >= shape.rows
        assert actual.columns >= shape.columns


def test_a_vector_is_one_row() -> None:
    assert Shape.of(torch.empty(7)) == (1, 1, 7)
    assert Shape.of(torch.empty(())) == (1, 1, 1)


def workspace(spec: WorkspaceSpec, sizes: list[tuple[int, ...]]) -> Workspace:
    """Return the workspace of parameters of these sizes."""
    params = [torch.empty(size) for size in sizes]
    shapes = [Shape.of(param) for param in params] if spec.by_matrix else []
    tiles = [Tile.of(shape) for shape in shapes]
    blocks = [prod(tile.counts(s)) for tile, s in zip(tiles, shapes, strict=True)] or [1] * len(
        sizes
    )
    layout = Layout(list(map(Shape.of, params)), tiles, blocks, sizes)
    return Workspace(spec, layout, params[0].dtype, params[0].device, False, None)


def test_the_table_holds_offsets_of_each_tensors_memory() -> None:
    spec = WorkspaceSpec(
        5, True, row_values=2, column_values=1, matrix_values=1, sums=1, row_sums=1
    )
    work = workspace(spec, [(20, 200), (2, 17, 130)])
    (
        blocks,
        matrices,
        rows,
        columns,
        ndim,
        eps,
        partials,
        values,
        groups,
        group_counts,
        tile_indices,
        shares,
        *what_finishes_add_up,
        whole_numels,
    ) = work.shapes.tolist()
    assert (blocks, matrices) == ([4, 8], [1, 2])
    assert (rows, columns, ndim) == ([20, 17], [200, 130], [2, 3])
    assert struct.unpack("<d", array("q", eps[:1]).tobytes())[0] == torch.finfo(torch.float32).eps
    assert partials == [0, 2 * 20 + 4]
    assert work.partials.numel() == partials[1] + 2 * 2 * 17 + 8
    assert values == [0, 2 * 20 + 200 + 1]
    assert work.values.numel() == values[1] + 2 * (2 * 17 + 130 + 1)
    assert (groups, group_counts) == ([0, 1], [1, 2])
    assert tile_indices == [0, 0]
    assert shares == [work.partials.numel()] * 2
    assert whole_numels == [20 * 200, 2 * 17 * 130]
    assert what_finishes_add_up == [partials, blocks, shares, group_counts]
    assert work.arrivals.tolist() == [0, 0, 0]


def test_tensors_of_all_shapes_share_a_bucket() -> None:
    spec = WorkspaceSpec(1, True, row_values=1, sums=1, row_sums=1, column_sums=1)
    work = workspace(spec, [(300, 3, 3), (40, 500), (128, 3, 4), (2048, 1, 1)])
    assert work.line_options["TILES"] == ((1, 16, 128), (128, 4, 4), (2048, 1, 1))
    assert work.line_options["FINISH_TILES"] == (
        (1, FINISH_LINES, FINISH_LINES),
        (128, 4, 4),
        (2048, 1, 1),
    )
    assert work.shapes[10].tolist() == [1, 0, 1, 2]


def test_blocks_of_whole_matrices_leave_no_partial_rows() -> None:
    spec = WorkspaceSpec(1, True, row_values=1, sums=1, row_sums=1, column_sums=1)
    work = workspace(spec, [(300, 3, 3), (128, 3, 4)])
    assert work.partials.numel() == 3 + 1
    assert work.programs(1, 1).tensor_indices.tolist() == [0, 0, 0, 1]


def test_the_workspace_has_room_for_partial_sums_of_a_finish() -> None:
    work = workspace(WorkspaceSpec(1, True, sums=1, parts=3), [(300, 3, 3), (5, 2)])
    assert work.shapes[6].tolist() == [0, 3]
    assert work.shapes[11].tolist() == [4, 4 + 3 * 3]
    assert work.partials.numel() == 3 + 3 * 3 + 1 + 3


def test_each_chunk_of_lines_of_a_large_matrix_has_a_program() -> None:
    work = workspace(WorkspaceSpec(1, True), [(2, 300, 200), (1, 1)])
    programs = work.programs(1, 2)
    count = -(-300 // CHUNK) + 2 * -(-200 // CHUNK)  # programs of one matrix
    assert programs.first_programs.tolist() == [0, 2 * count]
    assert programs.tensor_indices.tolist() == [0] * 2 * count + [1]
    assert programs.total == 2 * count + 1
    assert work.programs(1, 2) is programs
    assert work.programs().tensor_indices.tolist() == [0, 0, 1]


def test_without_matrices_one_program_finishes_each_tensor() -> None:
    work = workspace(WorkspaceSpec(2, sums=3), [(5,), (0,), (7, 3)])
    assert work.partials.numel() == 9
    assert work.values.numel() == 0
    assert work.programs().tensor_indices.tolist() == [0, 1, 2]

"""Test tensors of more than 2**31 elements; the interpreter computes only their last block."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from torch import Tensor

import optgen.optim
from optgen import use_lowering
from optgen.runtime.fused_triton.launch_options import Shape, Tile
from optgen.runtime.fused_triton.table import HEADER, Table

pytest.importorskip("triton")

from triton import language as tl

from benchmarks.classes import CLASSES
from optgen.generated.adafactor import fused_triton as adafactor

ELEMENTS_BEFORE = 2**31
BLOCK = 1024
ELEMENTWISE = [name for name in CLASSES if name not in ("Adafactor", "Muon")]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("numel", [BLOCK, BLOCK - 24])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_block_after_2_to_the_31_elements_steps_as_it_does_alone(
    name: str, numel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table puts 2**31 elements before the block."""
    original_write = Table.write_addresses

    def write_as_if_elements_came_before(table: Table, streams: Sequence[Sequence[Tensor]]) -> None:
        original_write(table, streams)
        table.memory[0] += ELEMENTS_BEFORE  # the number of elements
        table.memory[1] -= ELEMENTS_BEFORE // BLOCK  # the first block
        for row, stream in enumerate(streams, HEADER):
            if stream and stream[0].numel() == numel:
                table.memory[row] -= ELEMENTS_BEFORE * stream[0].element_size()

    final_params = []
    for write_addresses in (original_write, write_as_if_elements_came_before):
        monkeypatch.setattr(Table, "write_addresses", write_addresses)
        generator = torch.Generator().manual_seed(0)
        param = torch.randn(numel, generator=generator, requires_grad=True)
        param.grad = torch.randn(numel, generator=generator)
        with use_lowering("fused_triton"):
            getattr(optgen.optim, name)([param]).step()
        final_params.append(param.detach())
    assert torch.equal(*final_params)
    assert not torch.equal(final_params[0], torch.randn(numel, generator=generator.manual_seed(0)))


def table_of_one_tensor(*entries: int) -> Tensor:
    """Return a table with these entries for its only tensor."""
    return torch.tensor(entries, dtype=torch.int64).view(-1, 1)


@inside_interpreter
def test_a_tile_after_2_to_the_31_elements_steps_as_the_rule() -> None:
    """The tile is the last 16 rows of a matrix with 128 columns."""
    rows_before = ELEMENTS_BEFORE // 128
    height = rows_before + 16
    param, grad = torch.randn(16, 128), torch.randn(16, 128)
    row, column = torch.rand(16), torch.rand(128)
    values = torch.empty(3 * height + 2 * 128)  # inverse roots; few pages are touched
    values[height + rows_before : 2 * height] = row
    values[3 * height + 128 :] = column
    scalars = torch.zeros(adafactor.SCALARS.value, dtype=torch.float64)
    scalars[5] = torch.inf  # the bound of inverse roots
    scalars[10] = 0.5  # the factor of the update
    addresses = [tensor.data_ptr() - ELEMENTS_BEFORE * 4 for tensor in (param, grad)]
    expected = param - 0.5 * grad * row[:, None] * column
    step: Any = adafactor.adafactor_factored_step3
    step[(1,)](
        # element count, first block, group, addresses of the streams; no states are read
        table_of_one_tensor(ELEMENTS_BEFORE + 2048, -rows_before // 16, 0, *addresses, 0, 0, 0, 0),
        torch.zeros(1, dtype=torch.int32),
        # blocks, matrices, rows, columns, axes; then offsets, and one group of matrices
        table_of_one_tensor(rows_before // 16 + 1, 1, height, 128, 2, 0, 0, 0, 0, 1, 0),
        scalars,
        values,
        found_inf=None,
        num_tensors=1,
        COMPUTE_T=tl.float32,
        PARAM_T=tl.float32,
        GRAD_T=tl.float32,
        VECTOR=4,
        TILES=((1, 16, 128),),
    )
    torch.testing.assert_close(param, expected, rtol=1e-6, atol=1e-6)


def test_a_tile_never_spans_2_to_the_31_elements() -> None:
    """Kernels count the elements within a tile in 32 bits."""
    for shape in (Shape(1, 16, 2**28), Shape(1, 3, 2**30), Shape(1, 5, 2**40), Shape(1, 2**40, 1)):
        tile = Tile.of(shape)
        assert tile.matrices * tile.rows * tile.columns == 2048
        assert (tile.rows - 1) * shape.columns + tile.columns < 2**31

"""Test that blocks cover a tensor once, each with the rows, columns and numbers of its elements."""

from __future__ import annotations

import pytest
import torch

from optgen.runtime.eager import parts
from optgen.runtime.eager.parts import blocks, list_blocks, list_chunks, needs_blocks, sublists

SHAPES = ((100,), (7, 13), (1, 90), (90, 1), (3, 5, 7), (2, 3, 4, 5), (4, 3, 2, 50))


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "CPU_ELEMENTS", 16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_cover_a_tensor_once(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    assert needs_blocks(tensor)
    for (block,) in blocks(tensor):
        assert 0 < block.numel() <= 16
        block.add_(1)
    assert tensor.eq(1).all()


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 1], ids=str)
def test_blocks_have_their_rows_and_columns(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, dtype=torch.float64)
    rows = torch.zeros((*shape[:-1], 1), dtype=torch.float64)
    columns = torch.zeros((*shape[:-2], 1, shape[-1]), dtype=torch.float64)
    whole = torch.zeros([1] * len(shape), dtype=torch.float64)
    for block, row, column, total in blocks(tensor, rows, columns, whole):
        row.add_(block.sum(-1, keepdim=True))
        column.add_(block.sum(-2, keepdim=True))
        total.add_(block.sum())
    torch.testing.assert_close(rows, tensor.sum(-1, keepdim=True))
    torch.testing.assert_close(columns, tensor.sum(-2, keepdim=True))
    assert whole.item() == pytest.approx(tensor.sum().item())


def test_a_small_tensor_stays_whole() -> None:
    tensor, rows = torch.randn(4, 4), torch.randn(4, 1)
    ((block, row),) = blocks(tensor, rows)
    assert block is tensor
    assert row is rows
    assert not needs_blocks(tensor)


def test_sublists_hold_few_elements_or_one_tensor() -> None:
    small = [torch.zeros(5) for _ in range(8)]
    assert [len(sublist) for (sublist,) in sublists(small)] == [3, 3, 2]
    large = [torch.zeros(40) for _ in range(3)]
    assert [len(sublist) for (sublist, _) in sublists(large, large)] == [1, 1, 1]
    assert [len(sublist) for (sublist,) in sublists([torch.zeros(0)] * 2)] == [2]


def test_a_sublist_is_yielded_whole_or_in_blocks() -> None:
    small = [torch.zeros(5), torch.zeros(5)]
    ((first, second),) = list_blocks(small, small)
    assert first == small
    assert second == small
    sizes = [
        [len(part) for part in chunk]
        for chunk, _ in list_blocks([torch.zeros(40)], [torch.zeros(40)])
    ]
    assert sizes == [[16], [16], [8]]


@pytest.mark.parametrize("size", [4, 40])
def test_a_float64_number_does_not_widen_the_elements(size: int) -> None:
    number = torch.ones(1, dtype=torch.float64)
    single, double = torch.ones(size), torch.ones(size, dtype=torch.float64)

    for param, dtype in ((single, torch.float32), (single.half(), torch.float32)):
        assert {n.dtype for _, n in blocks(param, number)} == {dtype}
        assert {n.dtype for _, (n,) in list_blocks([param], [number])} == {dtype}
    assert {n.dtype for _, n in blocks(double, number)} == {torch.float64}


def test_chunks_go_over_whole_lists_and_add_up_in_place() -> None:
    # several tensors in a chunk, blocks of one tensor, tensors without elements
    for shape in ((5,), (7, 4), (0, 3)):
        params = [torch.randn(shape) for _ in range(5)]
        sums = torch.zeros([5, *[1] * len(shape)], dtype=torch.float64)
        for part, same, numbers in list_chunks(params, params, sums=[sums.unbind()]):
            assert all(map(torch.equal, part, same))
            assert sum(tensor.numel() for tensor in part) <= 16
            for tensor, number in zip(part, numbers, strict=True):
                number += tensor.double().sum()

        torch.testing.assert_close(
            sums.flatten(), torch.stack([param.double().sum() for param in params])
        )

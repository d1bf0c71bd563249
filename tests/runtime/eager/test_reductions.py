"""Test that reductions keep every axis, and that stacked tensors are reduced one by one."""

from __future__ import annotations

import pytest
import torch

from optgen.runtime.eager import reductions
from optgen.runtime.eager.tensor_lists import TensorList

SHAPES = ((), (5,), (3, 4), (2, 3, 4), (0, 3))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_maxima_of_whole_tensors_keep_every_axis(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    for found, expected in (
        (reductions.total(x), x.sum()),
        (reductions.sum_of_squares(x), (x * x).sum()),
        (reductions.max_abs(x), x.abs().max() if x.numel() else torch.tensor(0.0)),
    ):
        assert found.shape == reductions.zero_sum(x).shape == (1,) * len(shape)
        assert found.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 1], ids=str)
def test_sums_of_rows_and_columns_keep_every_axis(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(reductions.row_sum_of_squares(x), reductions.row_sum(x * x))
    torch.testing.assert_close(reductions.col_sum_of_squares(x), reductions.col_sum(x * x))
    assert reductions.zero_row_sum(x).shape == reductions.row_sum(x).shape
    assert reductions.zero_col_sum(x).shape == reductions.col_sum(x).shape
    assert reductions.zero_row_sum(x, 3).shape == (3, *reductions.row_sum(x).shape)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_maxima_of_rows_and_columns_are_torchs(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    y = torch.where(x > 1, torch.nan, x)
    for value in (x, y):
        for function, axis, zeros in (
            (reductions.row_max_abs, -1, reductions.zero_row_sum(x)),
            (reductions.col_max_abs, -2, reductions.zero_col_sum(x)),
        ):
            found = function(value)
            assert found.shape == zeros.shape
            results_of_list = function(TensorList([value, -value])).tensors
            for each in (found, *results_of_list):
                largest = value.abs().amax(axis, keepdim=True) if value.size(axis) else zeros
                torch.testing.assert_close(each, largest, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_stacked_tensors_are_reduced_one_by_one(shape: tuple[int, ...]) -> None:
    tensors = [torch.randn(shape) for _ in range(3)]
    stacked = torch.stack(tensors)
    torch.testing.assert_close(
        reductions.totals(stacked), torch.stack([reductions.total(x) for x in tensors])
    )
    torch.testing.assert_close(
        reductions.stacked_max_abs(stacked), torch.stack([reductions.max_abs(x) for x in tensors])
    )


def test_sixteen_bit_floats_are_summed_in_float32_or_wider() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    assert reductions.sum_of_squares(x).item() == 4096
    assert reductions.zero_row_sum(x.view(64, 64)).dtype == torch.float32
    assert reductions.zero_sum(x).dtype == torch.float64


def test_write_rounds_to_the_dtype_of_the_state() -> None:
    states = [torch.zeros(2, dtype=torch.bfloat16) for _ in range(2)]
    reductions.write(states, torch.tensor([[1.0, 2.0], [3.0, 1 / 3]]))
    assert states[1].tolist() == [3.0, torch.tensor(1 / 3).bfloat16().item()]

"""Test that reductions keep every axis, and that stacked tensors are reduced one by one."""

from __future__ import annotations

import pytest
import torch

from optgen.runtime.eager import reductions as r
from optgen.runtime.eager.tensor_lists import TensorList

SHAPES = ((), (5,), (3, 4), (2, 3, 4), (0, 3))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_maxima_of_whole_tensors_keep_every_axis(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    for found, expected in (
        (r.total(x), x.sum()),
        (r.sum_of_squares(x), (x * x).sum()),
        (r.max_abs(x), x.abs().max() if x.numel() else torch.tensor(0.0)),
    ):
        assert found.shape == r.zero_sum(x).shape == (1,) * len(shape)
        assert found.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 1], ids=str)
def test_sums_of_rows_and_columns_keep_every_axis(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(r.row_sum_of_squares(x), r.row_sum(x * x))
    torch.testing.assert_close(r.col_sum_of_squares(x), r.col_sum(x * x))
    assert r.zero_row_sum(x).shape == r.row_sum(x).shape
    assert r.zero_col_sum(x).shape == r.col_sum(x).shape
    assert r.zero_row_sum(x, 3).shape == (3, *r.row_sum(x).shape)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_maxima_of_rows_and_columns_are_torchs(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    y = torch.where(x > 1, torch.nan, x)
    for value in (x, y):
        for function, axis, zeros in (
            (r.row_max_abs, -1, r.zero_row_sum(x)),
            (r.col_max_abs, -2, r.zero_col_sum(x)),
        ):
            found = function(value)
            assert found.shape == zeros.shape
            several = function(TensorList([value, -value])).tensors
            for each in (found, *several):
                largest = value.abs().amax(axis, keepdim=True) if value.size(axis) else zeros
                torch.testing.assert_close(each, largest, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_stacked_tensors_are_reduced_one_by_one(shape: tuple[int, ...]) -> None:
    tensors = [torch.randn(shape) for _ in range(3)]
    stacked = torch.stack(tensors)
    torch.testing.assert_close(r.totals(stacked), torch.stack([r.total(x) for x in tensors]))
    torch.testing.assert_close(r.max_abses(stacked), torch.stack([r.max_abs(x) for x in tensors]))


def test_sixteen_bit_floats_are_summed_in_float32_or_wider() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    assert r.sum_of_squares(x).item() == 4096
    assert r.zero_row_sum(x.view(64, 64)).dtype == torch.float32
    assert r.zero_sum(x).dtype == torch.float64


def test_write_rounds_to_the_dtype_of_the_state() -> None:
    states = [torch.zeros(2, dtype=torch.bfloat16) for _ in range(2)]
    r.write(states, torch.tensor([[1.0, 2.0], [3.0, 1 / 3]]))
    assert states[1].tolist() == [3.0, torch.tensor(1 / 3).bfloat16().item()]

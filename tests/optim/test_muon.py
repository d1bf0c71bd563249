"""Test Muon without torch's Muon, which the installed torch may not have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import optgen
import optgen.optim


def take_one_step(rows: int, cols: int, **options: Any) -> Tensor:
    """Return the parameter after one step from zeros."""
    param = torch.nn.Parameter(torch.zeros(rows, cols, dtype=torch.float64))
    param.grad = torch.linspace(-1, 2, rows * cols, dtype=torch.float64).view(rows, cols).sin()
    optgen.optim.Muon([param], weight_decay=0, **options).step()
    return param.detach()


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize(("rows", "cols"), [(6, 2), (4, 4), (2, 6)])
def test_spectral_unclamped_scales_by_the_root_of_rows_over_columns(
    lowering: str, rows: int, cols: int
) -> None:
    """Torch has this option since version 2.14. The scale of 'original' is never below 1."""
    with optgen.use_lowering(lowering):
        unclamped = take_one_step(rows, cols, lr=0.1, adjust_lr_fn="spectral_unclamped")
        original = take_one_step(rows, cols, lr=0.1, adjust_lr_fn="original")

    ratio = (rows / cols) ** 0.5
    torch.testing.assert_close(unclamped / ratio, original / max(1, ratio), rtol=1e-12, atol=0)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw", "spectral_unclamped"])
@pytest.mark.parametrize(("rows", "cols"), [(3, 0), (0, 3)])
def test_a_matrix_without_elements_does_not_change_the_steps_of_others(
    lowering: str, adjust: str, rows: int, cols: int
) -> None:
    params = [torch.nn.Parameter(torch.ones(size)) for size in [(3, 2), (rows, cols), (3, 2)]]
    for param in params:
        param.grad = torch.ones_like(param)
    with optgen.use_lowering(lowering):
        optgen.optim.Muon(params, lr=0.1, adjust_lr_fn=adjust).step()

    assert (params[0] < 1).all()
    assert torch.equal(params[0], params[2])

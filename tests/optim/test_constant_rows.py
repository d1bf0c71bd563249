"""Tests of rules that divide by a row's range: equal gradients have none."""

from __future__ import annotations

import pytest
import torch

import optgen
from optgen.optim import Rose


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize(("centralize", "moved"), [(False, -1e-4), (True, 0)])
@pytest.mark.parametrize("stabilize", [False, True])
def test_a_constant_gradient_has_no_range(
    lowering: str, centralize: bool, moved: float, stabilize: bool
) -> None:
    """The author's class divides by 1 then. In float32, a mean of 0.1s is not quite 0.1."""
    param = torch.nn.Parameter(torch.zeros(4, 7))
    param.grad = torch.full((4, 7), 0.1)
    options = {"centralize": centralize, "stabilize": stabilize}
    with optgen.use_lowering(lowering):
        Rose([param], lr=1e-3, weight_decay=0, **options).step()
    torch.testing.assert_close(
        param.detach(), torch.full((4, 7), float(moved)), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_gradient_that_is_no_number_is_seen_in_all_rows(lowering: str) -> None:
    param = torch.nn.Parameter(torch.zeros(4, 7))
    param.grad = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    param.grad[0, 0] = torch.nan
    with optgen.use_lowering(lowering):
        Rose([param]).step()
    assert param.isnan().all()

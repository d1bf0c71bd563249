"""Test that SOAP goes on when the limit of its bases is raised between two steps."""

from __future__ import annotations

import pytest
import torch

import optgen
from optgen.optim import SOAP


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_raised_limit_stops_no_step(lowering: str) -> None:
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter(torch.randn(6, 10, generator=generator))
    optimizer = SOAP([param], lr=0.01, weight_decay=0, max_precond_dim=8)
    lengths = []
    with optgen.use_lowering(lowering):
        for step in range(14):
            param.grad = torch.randn(6, 10, generator=generator)
            if step == 4:
                optimizer.param_groups[0]["max_precond_dim"] = 10
            before = param.detach().clone()
            optimizer.step()
            lengths.append((param.detach() - before).abs().max())
    assert min(lengths[1:]) > 1e-3  # the first step only finds bases
    basis = optimizer.state[param]["basis_right"]
    torch.testing.assert_close(basis.mT @ basis, torch.eye(10), rtol=0, atol=1e-5)

"""Tests that SOAP goes on when the limit of its bases is raised between two steps."""

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


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_raised_limit_rotates_the_momentum(lowering: str) -> None:
    """A twin whose limit stays has the momentum before its rotation."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.ones(6, 10)) for _ in range(2)]
    raised, twin = (SOAP([param], max_precond_dim=8) for param in params)
    with optgen.use_lowering(lowering):
        for step in range(5):
            if step == 4:
                raised.param_groups[0]["max_precond_dim"] = 10
            params[0].grad = params[1].grad = torch.randn(6, 10, generator=generator)
            raised.step()
            twin.step()
    state, momentum = raised.state[params[0]], twin.state[params[1]]["exp_avg"]
    assert momentum.abs().max() > 0.1
    torch.testing.assert_close(state["exp_avg"], momentum @ state["basis_right"])
    torch.testing.assert_close(params[0], params[1])

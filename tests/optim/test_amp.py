"""Test every class under torch's GradScaler, which skips steps with infinite gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from optim.classes import CLASSES, parameters, states
from parity.classes import SPARSE
from torch import Tensor

import optgen.optim

FLAGS: list[dict[str, Any]] = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]


def loss(name: str, params: list[Tensor], step: int) -> Tensor:
    """Return a loss with gradients that depend on the step only; they are sparse for SPARSE."""
    generator = torch.Generator().manual_seed(step)
    total = torch.zeros(())
    for param in params:
        factor = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        rows = torch.arange(len(param))
        sparse = name in SPARSE
        picked = torch.nn.functional.embedding(rows, param, sparse=True) if sparse else param
        total = total + (factor * picked).sum()
    return total


def ours(name: str) -> Any:
    return getattr(optgen.optim, name)


def only_matrices(name: str) -> list[Tensor]:
    """Return the parameters that are matrices; the embedding in `loss` takes no others."""
    return parameters(name)[:2]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_a_scaled_training_equals_the_unscaled_one(name: str, flags: dict[str, Any]) -> None:
    plain, scaled = only_matrices(name), only_matrices(name)
    reference, optimizer = ours(name)(plain, **flags), ours(name)(scaled, **flags)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for step in range(4):
        if step in (0, 2):  # before there is any state, and after
            before = [p.detach().clone() for p in scaled], copy.deepcopy(dict(states(optimizer)))
            scaler.scale(loss(name, scaled, step) * torch.inf).backward()
            scaler.step(optimizer)
            scaler.update()
            assert all(map(torch.equal, scaled, before[0]))
            assert is_unchanged(dict(states(optimizer)), before[1])
        reference.zero_grad()
        optimizer.zero_grad()
        loss(name, plain, step).backward()
        reference.step()
        scaler.scale(loss(name, scaled, step)).backward()
        scaler.step(optimizer)
        scaler.update()
        for a, b in zip(scaled, plain, strict=True) if name not in SPARSE else ():
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=0)  # unscaled in place
    for a, b in zip(scaled, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def is_unchanged(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Tell whether the old values are the same, and new step counts, if any, are 0."""
    counts = [v for k, v in found.items() if k.startswith("step of") and k not in expected]
    same = (torch.equal(*map(torch.as_tensor, (found[k], v))) for k, v in expected.items())
    return all(same) and not any(counts)


@pytest.mark.parametrize("name", CLASSES)
def test_the_step_unscales_if_fused_is_asked_for(name: str) -> None:
    """A copy unscales in its step too; copies of torch's own optimizers do not."""
    optimizer = ours(name)(parameters(name), fused=True)

    assert optimizer._step_supports_amp_scaling is True
    assert copy.deepcopy(optimizer)._step_supports_amp_scaling is True
    assert not hasattr(ours(name)(parameters(name)), "_step_supports_amp_scaling")


@pytest.mark.parametrize("name", CLASSES)
def test_gradients_that_were_unscaled_before_the_step_are_not_unscaled_again(name: str) -> None:
    """Gradients are unscaled early for clipping, for example."""
    for flags in FLAGS:
        plain, scaled = only_matrices(name), only_matrices(name)
        reference, optimizer = ours(name)(plain, **flags), ours(name)(scaled, **flags)
        loss(name, plain, 0).backward()
        reference.step()
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(loss(name, scaled, 0)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)

        for a, b in zip(scaled, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)

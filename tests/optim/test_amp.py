"""Test every class under torch's GradScaler, which skips steps with infinite gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from optim.classes import CLASSES, parameters, states
from parity.classes import SPARSE_CLASSES
from torch import Tensor

import optgen.optim

FLAGS: list[dict[str, Any]] = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]


def loss(name: str, params: list[Tensor], step: int) -> Tensor:
    """Return a loss whose gradients depend on the step only. They are sparse for SPARSE_CLASSES."""
    generator = torch.Generator().manual_seed(step)
    total = torch.zeros(())
    for param in params:
        factor = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        rows = torch.arange(len(param))
        if name in SPARSE_CLASSES:
            param = torch.nn.functional.embedding(rows, param, sparse=True)
        total = total + (factor * param).sum()
    return total


def our_class(name: str) -> Any:
    return getattr(optgen.optim, name)


def matrix_parameters(name: str) -> list[Tensor]:
    """Return two matrices, because the embedding in `loss` takes no other shapes."""
    return parameters(name)[:2]


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_training_with_a_scaler_equals_training_without(name: str, flags: dict[str, Any]) -> None:
    plain, scaled = matrix_parameters(name), matrix_parameters(name)
    reference, optimizer = our_class(name)(plain, **flags), our_class(name)(scaled, **flags)
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
        if name not in SPARSE_CLASSES:
            grads = [[param.grad for param in params] for params in (scaled, plain)]
            torch.testing.assert_close(*grads, rtol=1e-12, atol=0)  # unscaled in place
    torch.testing.assert_close(scaled, plain, rtol=1e-12, atol=1e-14)


def is_unchanged(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Tell whether states have the expected values, and step counts that are new are 0."""
    new_counts = [v for k, v in found.items() if k.startswith("step of") and k not in expected]
    equal = (torch.equal(*map(torch.as_tensor, (found[k], v))) for k, v in expected.items())
    return all(equal) and not any(new_counts)


@pytest.mark.parametrize("name", CLASSES)
def test_the_step_unscales_gradients_if_fused_is_true(name: str) -> None:
    """The step of a copy does so, too, unlike copies of torch's optimizers."""
    optimizer = our_class(name)(parameters(name), fused=True)

    assert optimizer._step_supports_amp_scaling is True
    assert copy.deepcopy(optimizer)._step_supports_amp_scaling is True
    assert not hasattr(our_class(name)(parameters(name)), "_step_supports_amp_scaling")


@pytest.mark.parametrize("name", CLASSES)
def test_the_step_does_not_unscale_gradients_again(name: str) -> None:
    """A user may unscale gradients before the step, to clip them."""
    for flags in FLAGS:
        plain, scaled = matrix_parameters(name), matrix_parameters(name)
        reference, optimizer = our_class(name)(plain, **flags), our_class(name)(scaled, **flags)
        loss(name, plain, 0).backward()
        reference.step()
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(loss(name, scaled, 0)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)

        torch.testing.assert_close(scaled, plain, rtol=1e-12, atol=1e-14)

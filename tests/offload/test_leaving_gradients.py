"""Test gradients that leave the device during the backward pass."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from offload.scripts import network
from offload.training import assert_equal, backward, master, offloaded, pair, train
from torch import Tensor, nn

from optgen.runtime import take_step

LEAVE: dict[str, Any] = {"gradients": "leave", "clip_norm": None}


def test_gradients_are_gone_after_the_backward_pass(sim: Any) -> None:
    model = network("sim")
    with offloaded(model, **LEAVE):
        backward(model)

        assert all(param.grad is None for param in model.parameters())


@pytest.mark.parametrize("accumulation", [None, 3])
def test_gradients_are_summed_in_float32(accumulation: int | None, sim: Any) -> None:
    ours, theirs = network("sim"), network()
    optimizer = offloaded(ours, accumulation=accumulation, **LEAVE)
    reference = master("adamw")(theirs.parameters(), lr=1e-2)
    for first in (0, 3):
        sums: dict[Tensor, Tensor] = {}
        for index in range(first, first + 3):
            backward(ours, index)
            backward(theirs, index)
            for param in theirs.parameters():
                assert param.grad is not None
                sums[param] = param.grad.float() + sums.get(param, 0.0)
                param.grad = None
        optimizer.step()
        with torch.no_grad():
            take_step.step(reference, [sums[param] for param in theirs.parameters()])

    assert_equal(ours, theirs)


@pytest.mark.parametrize("options", [LEAVE, {**LEAVE, "hide": "backward"}, {}])
def test_device_memory_is_that_of_the_ring(options: dict[str, Any], sim: Any) -> None:
    """Gradients are freed as they come: no more of them are alive than slots hold, and one."""
    layers = [nn.Linear(64, 64, bias=False).bfloat16() for _ in range(16)]
    model, size = nn.Sequential(*layers).to("sim"), 64 * 64 * 2
    with offloaded(model, bucket_bytes=size, slots=2, **options):
        value = model(torch.ones(2, 64, dtype=torch.bfloat16, device="sim")).float().mean()
        torch.accelerator.synchronize()
        sim.reset_counts()
        before = sim.counts()["device_peak"]
        value.backward()
        torch.accelerator.synchronize()
        peak = sim.counts()["device_peak"] - before

    assert (peak <= 4 * size) is bool(options)


def test_zero_grad_drops_gradients_on_the_host(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(**LEAVE)
    backward(ours, 5)
    optimizer.zero_grad()
    train(ours, optimizer)
    train(theirs, reference)

    assert_equal(ours, theirs)


def test_a_gradient_that_no_hook_took_is_taken_by_the_step(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(**LEAVE)
    for model, each in ((ours, optimizer), (theirs, reference)):
        backward(model)
        param = next(model.parameters())
        if model is ours:
            each.zero_grad()
        for other in model.parameters():
            other.grad = None
        param.grad = torch.ones_like(param)
        each.step()

    assert_equal(ours, theirs)


def test_parameters_without_a_gradient_are_not_stepped(sim: Any) -> None:
    ours, optimizer, theirs, reference = pair(**LEAVE)
    for model, each in ((ours, optimizer), (theirs, reference)):
        model[-2].requires_grad_(False)
        train(model, each)
        model[-2].requires_grad_(True)

    assert_equal(ours, theirs)


def test_a_failed_pass_that_stepped_is_told(sim: Any) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            raise ArithmeticError("planted")

    model = network("sim")
    with offloaded(model, hide="backward", **LEAVE) as optimizer:
        train(model, optimizer, 1)
        saved = optimizer.state_dict()
        hidden = Failing.apply(model[:4](torch.ones(2, 24, dtype=torch.bfloat16, device="sim")))
        with pytest.raises(ArithmeticError, match="planted"):
            model[4:](hidden).sum().backward()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="failed after it had begun to step"):
                optimizer.step()
        optimizer.load_state_dict(saved)
        train(model, optimizer, 1)


@pytest.mark.parametrize("hide", ["nothing", "backward"])
def test_another_optimizer_takes_over(hide: str, sim: Any) -> None:
    """The first one's hooks do nothing once it is let go, even if they are still there."""
    model, expected = network("sim"), network("sim")
    options = {**LEAVE, "hide": hide}
    optimizer = offloaded(model, **options)
    train(model, optimizer, 1)
    gc.disable()
    try:
        optimizer = offloaded(model, **options)
        train(model, optimizer, 2, first=1)
    finally:
        gc.enable()
    optimizer.close()
    for first, count in ((0, 1), (1, 2)):
        with offloaded(expected, **options) as other:
            train(expected, other, count, first=first)

    assert_equal(model, expected)

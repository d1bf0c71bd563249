"""A small training, offloaded or not, for tests of one behaviour."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import device
import torch
from offload.scripts import WIDTH, inputs, loss, network
from torch import Tensor, nn
from torch.optim import Optimizer

import optgen
from optgen import compose, modifiers

OPTIONS: dict[str, Any] = {
    "keep_on_device": 0,
    "bucket_bytes": 2048,
    "slots": 2,
    "time_limit": 20.0,
}
BATCHES = inputs(8)


def master(rule: str) -> Any:
    """Return the composition whose bits an offloaded rule has."""
    return compose(rule, modifiers.state_dtype("float32"), modifiers.master)


def offloaded(model: nn.Module, rule: str = "adamw", **options: Any) -> Any:
    """Return an offloaded optimizer of a model on the device."""
    hyper = {} if "lr" in options else {"lr": 1e-2}
    return optgen.offload(rule, model.named_parameters(), **{**OPTIONS, **hyper, **options})


def backward(model: nn.Module, index: int = 0) -> None:
    device = next(model.parameters()).device
    loss(model, BATCHES[index % len(BATCHES)].to(device)).backward()


def train(model: nn.Module, optimizer: Optimizer, count: int = 3, first: int = 0) -> None:
    """Take steps; wait for the last one."""
    for index in range(first, first + count):
        backward(model, index)
        optimizer.step()
        optimizer.zero_grad()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()


@contextmanager
def short_limit(optimizer: Any, seconds: float = 1.0) -> Iterator[None]:
    """Let waits of an optimizer end after so many seconds, which its steps need not keep."""
    workers = [each for each in (optimizer._worker, optimizer._stepper._waiter) if each]
    for each in workers:
        each.time_limit = seconds
    try:
        yield
    finally:
        for each in workers:
            each.time_limit = OPTIONS["time_limit"]


@contextmanager
def stalled(sim: Any, optimizer: Any, seconds: float = 1.0) -> Iterator[None]:
    """Let the device end its work, and then answer nothing; waits end after so many seconds."""
    torch.accelerator.synchronize()
    sim.configure(stalled=True)
    try:
        with short_limit(optimizer, seconds):
            yield
    finally:
        sim.configure(stalled=False)
        torch.accelerator.synchronize()


def weights(model: nn.Module) -> list[Tensor]:
    return [param.detach().cpu().clone() for param in model.parameters()]


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    """Check that two models have the same bits."""
    for x, y in zip(weights(a), weights(b), strict=True):
        assert torch.equal(x, y)


def pair(rule: str = "adamw", **options: Any) -> tuple[nn.Module, Any, nn.Module, Any]:
    """Return an offloaded model with its optimizer, and the same on the CPU."""
    ours, theirs = network("sim"), network()
    return (
        ours,
        offloaded(ours, rule, **options),
        theirs,
        master(rule)(theirs.parameters(), lr=1e-2),
    )


def pinned_bytes() -> int:
    """Return the bytes of pinned memory, without those of optimizers that nobody has any more."""
    gc.collect()
    return int(device.counts()["pinned"])


def one_param(count: int = 64, **options: Any) -> nn.Parameter:
    return nn.Parameter(torch.ones(count, device="sim", **options))


__all__ = ["WIDTH", "network"]

"""Test tensor learning rates: the scheduler writes into the tensor, and keeps only copies of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import ALL, OURS, SINGLE, TORCH, optimizer_of, take_steps
from torch import Tensor
from torch.nn import Parameter

import optgen.optim


def tensors_of(scheduler: Any) -> list[Tensor]:
    values = [*scheduler.get_last_lr(), *getattr(scheduler, "base_lrs", [])]
    values += [group["initial_lr"] for group in scheduler.optimizer.param_groups]
    for part in getattr(scheduler, "_schedulers", ()):
        values += tensors_of(part)
    return [value for value in values if isinstance(value, Tensor)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_a_tensor_lr_is_changed_in_place(name: str, dtype: torch.dtype) -> None:
    """The group keeps its tensor. The scheduler stores and returns copies."""
    lr = torch.tensor(0.1, dtype=dtype)
    optimizer = optimizer_of(lr=lr, groups=2)
    before = [group["lr"] for group in optimizer.param_groups]
    scheduler = ALL[name](OURS, optimizer)
    take_steps(scheduler, 25)

    for old, group in zip(before, optimizer.param_groups, strict=True):
        assert group["lr"] is old
        assert old.dtype == dtype
        assert all(tensor is not old for tensor in tensors_of(scheduler))


@pytest.mark.parametrize("library", [OURS, TORCH], ids=["ours", "torch"])
@pytest.mark.parametrize("name", SINGLE)
def test_a_step_multiplies_a_tensor_that_groups_share_once(name: str, library: Any) -> None:
    lr = torch.tensor(0.1, dtype=torch.float64)
    params = [{"params": [Parameter(torch.ones(1))]} for _ in range(3)]
    scheduler = SINGLE[name](library, torch.optim.SGD(params, lr=lr, momentum=0.9))
    alone = SINGLE[name](library, optimizer_of(lr=0.1))

    for shared, single in zip(take_steps(scheduler, 30), take_steps(alone, 30), strict=True):
        assert shared == pytest.approx([*single, *single, *single], rel=1e-12)
    assert all(group["lr"] is lr for group in scheduler.optimizer.param_groups)


def test_our_optimizer_reads_the_tensor_that_the_scheduler_writes() -> None:
    lr = torch.tensor(1.0)
    param = Parameter(torch.zeros(3))
    optimizer = optgen.optim.SGD([param], lr=lr)
    scheduler = OURS.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        param.grad = torch.ones(3)
        optimizer.step()
        scheduler.step()

    assert torch.equal(param.detach(), torch.full((3,), -1.75))
    assert optimizer.param_groups[0]["lr"] is lr


def test_a_tensor_that_replaces_a_number_is_kept() -> None:
    """The scheduler changes the new tensor in place."""
    scheduler = OURS.ExponentialLR(optimizer_of(), 0.5)
    lr = scheduler.optimizer.param_groups[0]["lr"] = torch.tensor(0.4)
    take_steps(scheduler, 1)

    assert scheduler.optimizer.param_groups[0]["lr"] is lr
    assert float(lr) == pytest.approx(0.2)


def test_a_sequence_resets_to_a_copy_of_an_initial_tensor() -> None:
    """The group's `lr` is a number, and its `initial_lr` a tensor, which steps do not change."""
    optimizer = optimizer_of(lr=torch.tensor(0.1))
    first = OURS.LinearLR(optimizer)
    optimizer.param_groups[0]["lr"] = 0.7
    scheduler = OURS.SequentialLR(optimizer, [first], [])
    take_steps(scheduler, 3)

    assert float(optimizer.param_groups[0]["initial_lr"]) == pytest.approx(0.1)

"""Test CyclicLR and OneCycleLR: momenta, values for each group, and scale functions."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import (
    OURS,
    TORCH,
    ExponentialDecay,
    assert_close,
    factory,
    optimizer_of,
    take_steps,
)

import optgen.optim

WITH_VALUES_FOR_EACH_GROUP = {
    "CyclicLR": factory(
        "CyclicLR",
        base_lr=[0.01, 0.02],
        max_lr=(0.1, 0.3),
        step_size_up=7,
        base_momentum=[0.7, 0.8],
        max_momentum=[0.9, 0.99],
        mode="triangular2",
    ),
    "OneCycleLR": factory(
        "OneCycleLR",
        max_lr=[0.1, 0.3],
        total_steps=60,
        base_momentum=[0.7, 0.8],
        max_momentum=(0.9, 0.99),
    ),
}


@pytest.mark.parametrize("optim", [torch.optim, optgen.optim], ids=["torch", "optgen"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", WITH_VALUES_FOR_EACH_GROUP)
def test_each_group_can_have_its_own_values(name: str, optimizer: str, optim: Any) -> None:
    """The values include the momentum or first beta. The group's keys are in torch's order."""
    schedulers = [
        WITH_VALUES_FOR_EACH_GROUP[name](OURS, optimizer_of(optim, name=optimizer, groups=2)),
        WITH_VALUES_FOR_EACH_GROUP[name](
            TORCH, optimizer_of(torch.optim, name=optimizer, groups=2)
        ),
    ]
    mine, theirs = (take_steps(each, 50) for each in schedulers)

    assert_close(mine, theirs)
    keys = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
    for group, other in zip(*(s.optimizer.param_groups for s in schedulers), strict=True):
        assert [k for k in group if k in keys] == [k for k in other if k in keys]
        assert {k: group[k] for k in keys if k in group} == {
            k: other[k] for k in keys if k in other
        }
        if optimizer == "AdamW":
            assert group["betas"][1] == 0.999


def test_a_checkpoint_restores_the_attributes_of_a_scale_fn_object() -> None:
    """A checkpoint holds the attributes of the object, but no function."""
    scheduler = OURS.CyclicLR(optimizer_of(), 0.1, 1.0, scale_fn=ExponentialDecay(0.5))
    other = OURS.CyclicLR(optimizer_of(), 0.1, 1.0, scale_fn=ExponentialDecay(0.9))
    state = pickle.loads(pickle.dumps(scheduler.state_dict()))
    other.load_state_dict(state)

    assert state["_scale_fn_custom"] == {"rate": 0.5}
    assert other._scale_fn_custom.rate == 0.5
    assert "_scale_fn_ref" not in state


@pytest.mark.parametrize(
    ("mode", "values"),
    [("triangular", [1, 1, 1]), ("triangular2", [1, 0.5, 0.25]), ("exp_range", [0.9, 0.81, 0.729])],
)
def test_each_mode_has_its_scale_function(mode: Any, values: list[float]) -> None:
    """A loaded state replaces the mode and its scale function."""
    scheduler = OURS.CyclicLR(optimizer_of(), 0.1, 1.0, mode=mode, gamma=0.9)
    other = OURS.CyclicLR(optimizer_of(), 0.1, 1.0)
    other.load_state_dict(
        TORCH.CyclicLR(optimizer_of(), 0.1, 1.0, mode=mode, gamma=0.9).state_dict()
    )

    for each in (scheduler, other):
        assert [each.scale_fn(x) for x in (1, 2, 3)] == pytest.approx(values)
        assert [each._scale_fn_ref(x) for x in (1, 2, 3)] == pytest.approx(values)
    assert scheduler.scale_mode == TORCH.CyclicLR(optimizer_of(), 0.1, 1.0, mode=mode).scale_mode


def test_a_scheduler_pickled_by_an_old_torch_continues() -> None:
    """An old pickle holds the annealing function, not its name."""
    scheduler = OURS.OneCycleLR(optimizer_of(), 0.1, total_steps=10)
    plain = OURS.OneCycleLR(optimizer_of(), 0.1, total_steps=10)
    scheduler.anneal_func = scheduler._annealing_cos
    del scheduler._anneal_func_type

    assert take_steps(scheduler, 9) == take_steps(plain, 9)


def test_an_unknown_strategy_in_a_checkpoint_is_an_error() -> None:
    scheduler = OURS.OneCycleLR(optimizer_of(), 0.1, total_steps=10)
    scheduler._anneal_func_type = "poly"

    with pytest.raises(ValueError, match="Unknown _anneal_func_type: poly"):
        scheduler._anneal_func(0, 1, 0.5)


def test_momentum_changed_by_hand_is_replaced() -> None:
    """The scheduler replaces the first beta, and keeps the second."""
    optimizer = optimizer_of(name="AdamW")
    scheduler = OURS.OneCycleLR(optimizer, 0.1, total_steps=10)
    optimizer.param_groups[0]["betas"] = (0.1, 0.5)
    take_steps(scheduler, 1)

    assert optimizer.param_groups[0]["betas"] == (pytest.approx(0.9, abs=0.06), 0.5)

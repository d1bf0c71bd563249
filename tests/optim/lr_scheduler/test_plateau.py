"""Test that ReduceLROnPlateau reduces rates as torch's class does, for any metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.lr_scheduler.schedules import OURS, TORCH, optimizer_of

METRICS = st.lists(
    st.one_of(st.floats(-2, 2), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0])),
    min_size=1,
    max_size=40,
)
OPTIONS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["min", "max"]),
        "factor": st.sampled_from([0.1, 0.5, 0.99, 0.0]),
        "patience": st.integers(0, 3),
        "threshold": st.sampled_from([1e-4, 0.0, 0.3]),
        "threshold_mode": st.sampled_from(["rel", "abs"]),
        "cooldown": st.integers(0, 3),
        "min_lr": st.sampled_from([0, 0.01, [0.03, 0.0], (0.0, 0.2)]),
        "eps": st.sampled_from([1e-8, 0.01]),
    }
)


@settings(max_examples=100, deadline=None)
@given(metrics=METRICS, options=OPTIONS, dtype=st.sampled_from([None, torch.float64]))
def test_states_are_torchs_after_every_step(
    metrics: list[float], options: dict[str, Any], dtype: Any
) -> None:
    """In the middle of the run, each scheduler loads the other's state."""
    lr: Any = 0.1
    if dtype:
        lr = torch.tensor(0.1, dtype=dtype)
    mine, theirs = (
        library.ReduceLROnPlateau(optimizer_of(lr=lr.clone() if dtype else lr, groups=2), **options)
        for library in (OURS, TORCH)
    )
    for index, metric in enumerate(metrics):
        value = torch.tensor(metric, dtype=torch.float64) if index % 2 else metric
        mine.step(value)
        theirs.step(value)

        ours, torchs = mine.state_dict(), theirs.state_dict()
        assert list(ours) == list(torchs)
        assert str(ours) == str(torchs)
        if index == len(metrics) // 2:
            mine.load_state_dict(torchs)
            theirs.load_state_dict(ours)


def test_the_class_derives_from_torchs() -> None:
    """Frameworks pass metrics only to instances of torch's class; SequentialLR refuses these."""
    scheduler = OURS.ReduceLROnPlateau(optimizer_of())

    assert isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(ValueError, match="does not support `ReduceLROnPlateau`"):
        TORCH.SequentialLR(scheduler.optimizer, [scheduler], [])


def test_a_scalar_min_lr_bounds_a_group_added_later() -> None:
    optimizer = optimizer_of()
    scheduler = OURS.ReduceLROnPlateau(optimizer, patience=0, min_lr=0.05)
    optimizer.add_param_group({"params": [torch.zeros(1)], "lr": 0.2})
    for _ in range(2):
        scheduler.step(1.0)

    assert scheduler.get_last_lr() == [0.05, 0.05]


def test_a_reduction_of_at_most_eps_is_skipped() -> None:
    for library in (OURS, TORCH):
        scheduler = library.ReduceLROnPlateau(optimizer_of(lr=1.0), factor=0.5, patience=0, eps=0.5)
        for _ in range(3):
            scheduler.step(1.0)

        assert scheduler.get_last_lr() == [1.0]


def test_a_plateau_scheduler_does_not_warn_of_the_order_of_steps() -> None:
    """The scheduler may step before the optimizer, and does not wrap the optimizer's `step`."""
    optimizer = optimizer_of()
    scheduler = OURS.ReduceLROnPlateau(optimizer)
    for _ in range(3):
        scheduler.step(1.0)

    assert "step" not in vars(optimizer)

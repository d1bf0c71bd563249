"""Test errors for arguments that would fail in a later step, or make a rate negative or NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import OURS, optimizer_of

NAN, INF = math.nan, math.inf
INVALID_COUNTS, INVALID_FACTORS = (-1, -0.5, NAN, "x", None), (-1, NAN, INF, "x", None)
CYCLE: dict[str, Any] = {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3}
ONE_CYCLE: dict[str, Any] = {"max_lr": 0.5, "total_steps": 10}
ARGUMENTS: dict[str, dict[str, tuple[dict[str, Any], tuple[Any, ...]]]] = {
    "StepLR": {"step_size": ({}, INVALID_COUNTS), "gamma": ({"step_size": 2}, INVALID_FACTORS)},
    "MultiStepLR": {"gamma": ({"milestones": [2]}, INVALID_FACTORS)},
    "ExponentialLR": {"gamma": ({}, INVALID_FACTORS)},
    "ConstantLR": {"total_iters": ({}, INVALID_COUNTS), "factor": ({}, (NAN, -1, 2))},
    "LinearLR": {
        "total_iters": ({}, INVALID_COUNTS),
        "start_factor": ({}, (NAN, 0, 2)),
        "end_factor": ({}, (NAN, -1, 2)),
    },
    "PolynomialLR": {"total_iters": ({}, INVALID_COUNTS), "power": ({}, INVALID_COUNTS)},
    "CosineAnnealingLR": {
        "T_max": ({}, (NAN, "x", None)),
        "eta_min": ({"T_max": 4}, INVALID_FACTORS),
    },
    "CosineAnnealingWarmRestarts": {"eta_min": ({"T_0": 4}, (-1, NAN, INF))},
    "CyclicLR": {
        **dict.fromkeys(("base_lr", "max_lr", "step_size_up"), (CYCLE, INVALID_FACTORS)),
        "step_size_down": (CYCLE, (-1, NAN, INF, "x")),
        "gamma": (CYCLE | {"mode": "exp_range"}, INVALID_FACTORS),
        "base_momentum": (CYCLE, INVALID_FACTORS),
        "max_momentum": (CYCLE, INVALID_FACTORS),
    },
    "OneCycleLR": {
        "max_lr": (ONE_CYCLE, INVALID_FACTORS),
        "pct_start": (ONE_CYCLE, (NAN, INF, -1.0)),
        "div_factor": (ONE_CYCLE, (0, *INVALID_COUNTS)),
        "final_div_factor": (ONE_CYCLE, (0, *INVALID_COUNTS)),
        "max_momentum": (ONE_CYCLE, INVALID_FACTORS),
    },
    "ReduceLROnPlateau": {
        "factor": ({}, (-0.5, NAN, 1.0, "x")),
        "patience": ({}, INVALID_COUNTS),
        "cooldown": ({}, INVALID_COUNTS),
        "threshold": ({}, (NAN, "x", None)),
        "eps": ({}, INVALID_COUNTS),
    },
    "SWALR": {"swa_lr": ({}, INVALID_FACTORS), "anneal_epochs": ({"swa_lr": 0.1}, (-1, NAN, "x"))},
}
CASES = [
    (scheduler, argument, {**other_arguments, argument: value})
    for scheduler, arguments in ARGUMENTS.items()
    for argument, (other_arguments, values) in arguments.items()
    for value in values
]


@pytest.mark.parametrize(
    ("scheduler", "argument", "kwargs"), CASES, ids=[f"{s}-{a}-{g[a]}" for s, a, g in CASES]
)
def test_an_invalid_argument_is_an_error_at_construction(
    scheduler: str, argument: str, kwargs: dict[str, Any]
) -> None:
    """The error names the argument, and the optimizer is unchanged."""
    optimizer = optimizer_of(groups=2)
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError) as error:
        getattr(OURS, scheduler)(optimizer, **kwargs)
    words_in_messages = {"factor": "actor", "start_factor": "Starting", "end_factor": "Ending"}
    assert words_in_messages.get(argument, argument) in str(error.value)
    assert [list(group) for group in optimizer.param_groups] == [list(group) for group in before]
    assert all(
        group[key] is other[key]
        for group, other in zip(optimizer.param_groups, before, strict=True)
        for key in other
    )


@pytest.mark.parametrize(
    ("scheduler", "kwargs"),
    [
        ("StepLR", {"step_size": torch.tensor(3), "gamma": torch.tensor(0.5)}),
        ("StepLR", {"step_size": INF}),
        ("StepLR", {"step_size": 2, "gamma": 0}),
        ("LinearLR", {"total_iters": INF}),
        ("CosineAnnealingLR", {"T_max": -4}),  # a cosine is even
        ("CyclicLR", {**CYCLE, "step_size_down": 0}),
        ("CyclicLR", {**CYCLE, "gamma": NAN}),  # only the mode exp_range uses gamma
        ("CyclicLR", {**CYCLE, "base_lr": torch.tensor(0.1)}),
        ("OneCycleLR", {**ONE_CYCLE, "div_factor": INF}),
        ("ReduceLROnPlateau", {"threshold": -0.1, "min_lr": -1}),
    ],
    ids=str,
)
def test_unusual_arguments_that_work_in_torch_work(scheduler: str, kwargs: dict[str, Any]) -> None:
    constructed = getattr(OURS, scheduler)(optimizer_of(), **kwargs)
    for _ in range(4):
        constructed.optimizer.step()
        constructed.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
    assert all(math.isfinite(rate) for rate in constructed.get_last_lr())

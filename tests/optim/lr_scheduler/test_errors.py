"""Test that errors and warnings of schedulers have torch's texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import (
    OURS,
    SINGLE,
    TORCH,
    optimizer_of,
    take_steps,
    warnings_and_error,
)
from torch.nn import Linear
from torch_versions import HAS_2_13

Call = Callable[[Any, Any], object]


def call(name: str, *args: Any, **kwargs: Any) -> Call:
    return lambda library, optimizer: getattr(library, name)(optimizer, *args, **kwargs)


def step_with_an_added_group(library: Any, optimizer: Any) -> None:
    scheduler = library.ReduceLROnPlateau(optimizer, min_lr=[0, 0, 0], patience=0)
    optimizer.add_param_group({"params": [torch.zeros(1)]})
    for _ in range(3):
        scheduler.step(1.0)


def step_past_the_end(library: Any, optimizer: Any) -> None:
    scheduler = library.OneCycleLR(optimizer, 0.1, total_steps=3)
    optimizer.step()
    for _ in range(5):
        scheduler.step()


def get_lr_outside_a_step(library: Any, optimizer: Any) -> None:
    library.StepLR(optimizer, 3).get_lr()


def composite(kind: str, *names: str, milestones: list[int] | None = None) -> Call:
    def make(library: Any, optimizer: Any) -> object:
        parts = [
            library.ReduceLROnPlateau(optimizer)
            if name == "plateau"
            else Linear(1, 1)
            if name == "model"
            else SINGLE[name](library, optimizer_of() if name == "StepLR-30" else optimizer)
            for name in names
        ]
        if kind == "SequentialLR":
            return library.SequentialLR(optimizer, parts, milestones or [])
        return library.ChainedScheduler(parts, optimizer)

    return make


INVALID_USES: dict[str, Call] = {
    "plateau-model": lambda library, _: library.ReduceLROnPlateau(Linear(1, 1)),
    "cyclic-model": lambda library, _: library.CyclicLR(Linear(1, 1), 0.1, 1),
    "one-cycle-model": lambda library, _: library.OneCycleLR(Linear(1, 1), 0.1),
    "step-model": lambda library, _: library.StepLR(Linear(1, 1), 3),
    "lambda-model": lambda library, _: library.LambdaLR(Linear(1, 1), abs),
    "resume": call("StepLR", 3, last_epoch=3),
    "resume-cosine": call("CosineAnnealingLR", 3, last_epoch=0),
    "lambdas": call("LambdaLR", [abs, abs]),
    "multiplicative": call("MultiplicativeLR", (abs,)),
    "multiplicative-number": call("MultiplicativeLR", 3),
    "lambda-number": call("LambdaLR", 3),
    "constant-high": call("ConstantLR", 1.1),
    "constant-low": call("ConstantLR", -0.1),
    "linear-start": call("LinearLR", 0.0),
    "linear-start-high": call("LinearLR", 1.5),
    "linear-end": call("LinearLR", 0.5, 1.1),
    "linear-end-low": call("LinearLR", 0.5, -1),
    "T_0": call("CosineAnnealingWarmRestarts", 0),
    "T_0-float": call("CosineAnnealingWarmRestarts", 1.5),
    "T_mult": call("CosineAnnealingWarmRestarts", 3, 0),
    "T_mult-float": call("CosineAnnealingWarmRestarts", 3, 1.5),
    "eta_min": call("CosineAnnealingWarmRestarts", 3, 1, "0"),
    "negative-epoch": lambda library, optimizer: library.CosineAnnealingWarmRestarts(
        optimizer, 3
    ).step(-1),
    "base_lr": call("CyclicLR", [0.1], 1),
    "max_lr": call("CyclicLR", 0.1, [1, 2]),
    "mode": call("CyclicLR", 0.1, 1, mode="square"),
    "base_momentum": call("CyclicLR", 0.1, 1, base_momentum=[0.1]),
    "max_momentum": call("CyclicLR", 0.1, 1, max_momentum=[0.1]),
    "no-momentum": lambda library, _: library.CyclicLR(optimizer_of(name="Adagrad"), 0.1, 1),
    "one-no-momentum": lambda library, _: library.OneCycleLR(
        optimizer_of(name="Adagrad"), 0.1, total_steps=3
    ),
    "total_steps": call("OneCycleLR", 0.1, 0),
    "total_steps-float": call("OneCycleLR", 0.1, 3.5),
    "no-steps": call("OneCycleLR", 0.1),
    "epochs": call("OneCycleLR", 0.1, epochs=-1, steps_per_epoch=3),
    "steps_per_epoch": call("OneCycleLR", 0.1, epochs=1, steps_per_epoch=0.5),
    "only-epochs": call("OneCycleLR", 0.1, epochs=1),
    "pct_start": call("OneCycleLR", 0.1, 3, pct_start=1.5),
    "pct_start-int": call("OneCycleLR", 0.1, 3, pct_start=1),
    "anneal": call("OneCycleLR", 0.1, 3, anneal_strategy="poly"),
    "one-max_lr": call("OneCycleLR", [0.1], 3),
    "one-momentum": call("OneCycleLR", 0.1, 3, max_momentum=[0.1]),
    "one-base": call("OneCycleLR", 0.1, 3, base_momentum=[0.1]),
    "past-the-end": step_past_the_end,
    "factor": call("ReduceLROnPlateau", factor=1.0),
    "plateau-mode": call("ReduceLROnPlateau", "least"),
    "threshold_mode": call("ReduceLROnPlateau", threshold_mode="relative"),
    "min_lr": call("ReduceLROnPlateau", min_lr=[0.1]),
    "added-group": step_with_an_added_group,
    "swa_lr": call("SWALR", [0.1]),
    # Before 2.13 torch's message has "must by one of".
    **({"swa-strategy": call("SWALR", 0.1, anneal_strategy="poly")} if HAS_2_13 else {}),
    "swa-epochs": call("SWALR", 0.1, -1),
    "swa-epochs-float": call("SWALR", 0.1, 1.5),
    "outside-a-step": get_lr_outside_a_step,
    "base-class": call("LRScheduler"),
    "sequence-empty": composite("SequentialLR"),
    "sequence-model": composite("SequentialLR", "LinearLR", "model", milestones=[1]),
    "sequence-plateau": composite("SequentialLR", "LinearLR", "plateau", milestones=[1]),
    "sequence-milestones": composite("SequentialLR", "LinearLR", "StepLR-1"),
    "sequence-epoch": lambda library, optimizer: composite("SequentialLR", "LinearLR")(
        library, optimizer
    ).step(3),  # type: ignore[attr-defined]
    "chain-empty": composite("ChainedScheduler"),
    "chain-model": composite("ChainedScheduler", "LinearLR", "model"),
    "chain-plateau": composite("ChainedScheduler", "LinearLR", "plateau"),
    "chain-first": lambda library, _: library.ChainedScheduler([Linear(1, 1)]),
    "plateau-rates": lambda library, optimizer: library.ReduceLROnPlateau(optimizer).get_lr(),
    "chain-rates": lambda library, optimizer: composite("ChainedScheduler", "LinearLR")(
        library, optimizer
    ).get_lr(),  # type: ignore[attr-defined]
    "plateau-epoch": lambda library, optimizer: library.ReduceLROnPlateau(optimizer).step(1, 2),
    "plateau-metric": lambda library, optimizer: library.ReduceLROnPlateau(optimizer).step(None),
    "step_size_up-0": call("CyclicLR", 0.1, 1, step_size_up=0),
}


@pytest.mark.parametrize("name", ["StepLR", "CosineAnnealingLR"])
def test_a_schedule_of_0_steps_can_be_constructed(name: str) -> None:
    """If a warm-up takes all epochs, 0 steps are left. A step of the schedule divides by 0."""
    for library in (OURS, TORCH):
        optimizer = optimizer_of()
        scheduler = getattr(library, name)(optimizer, 0)
        assert scheduler.get_last_lr() == [0.1]
        optimizer.step()
        with pytest.raises(ZeroDivisionError):
            scheduler.step()


@pytest.mark.parametrize("name", INVALID_USES)
def test_errors_and_warnings_are_torchs(name: str) -> None:
    mine, theirs = (
        warnings_and_error(
            lambda library=library: INVALID_USES[name](library, optimizer_of(groups=3))
        )
        for library in (OURS, TORCH)
    )

    assert theirs
    assert mine == theirs


@pytest.mark.parametrize("kind", ["SequentialLR", "ChainedScheduler"])
def test_a_scheduler_of_another_optimizer_raises_torchs_error(kind: str) -> None:
    """The message names the scheduler's class and index, because optimizers print alike."""
    make = composite(kind, "LinearLR", "StepLR-30", milestones=[3])
    (mine,), (theirs,) = (
        warnings_and_error(lambda library=library: make(library, optimizer_of()))
        for library in (OURS, TORCH)
    )

    assert mine == theirs
    assert "StepLR at index 1" in mine


@pytest.mark.parametrize("name", ["LambdaLR", "CyclicLR", "CosineAnnealingWarmRestarts-50"])
def test_a_group_added_to_a_scheduler_with_values_per_group_raises(name: str) -> None:
    """Torch raises a ValueError, too."""
    schedulers = [SINGLE[name](library, optimizer_of()) for library in (OURS, TORCH)]
    for scheduler in schedulers:
        scheduler.optimizer.add_param_group({"params": [torch.zeros(1)]})
        scheduler.optimizer.step()

    with pytest.raises(ValueError, match="was made for 1 param groups, and its optimizer has 2"):
        schedulers[0].step()
    with pytest.raises(ValueError):
        schedulers[1].step()


@pytest.mark.parametrize("before", [0, 7, 70])
@pytest.mark.parametrize(
    "name", ["StepLR-1", "LinearLR-up", "LinearLR-to-0", "CosineAnnealingLR-100", "PolynomialLR"]
)
def test_an_added_group_has_the_rate_that_it_has_in_torch(name: str, before: int) -> None:
    """The scheduler multiplies the group's rate, unless it has ended at 0."""
    rates = []
    for library in (OURS, TORCH):
        scheduler = SINGLE[name](library, optimizer_of())
        take_steps(scheduler, before)
        scheduler.optimizer.add_param_group({"params": [torch.zeros(1)], "lr": 0.7})
        scheduler.optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr())

    assert rates[0] == pytest.approx(rates[1], rel=1e-12)

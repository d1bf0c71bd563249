"""Test trajectories of every scheduler against torch, for floats, tensors and several groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import (
    ALL,
    OURS,
    SHAPED,
    SINGLE,
    TORCH,
    assert_close,
    factory,
    optimizer_of,
    rates_and_momenta,
    take_steps,
    trajectory,
    warnings_and_error,
)

OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    "float": {"lr": 0.1},
    "groups": {"lr": 0.1, "groups": 3},
    "zero": {"lr": 0.0},
    "float64": {"lr": torch.tensor(0.1, dtype=torch.float64), "groups": 3},
    "float32": {"lr": torch.tensor(0.1)},
    "one-element": {"lr": torch.tensor([0.1], dtype=torch.float64)},
}
WITH_CLOSED_FORM = [name for name in SHAPED if not name.startswith(("SWALR", "MultiplicativeLR"))]


def optimizer_options(case: str) -> dict[str, Any]:
    """Return options for `optimizer_of`, with a tensor of their own."""
    options = OPTIMIZER_OPTIONS[case]
    lr = options["lr"]
    return options | {"lr": lr.clone() if torch.is_tensor(lr) else lr}


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("case", OPTIMIZER_OPTIONS)
@pytest.mark.parametrize("name", ALL)
def test_300_steps_are_torchs(name: str, case: str) -> None:
    mine = trajectory(ALL[name], OURS, **optimizer_options(case))
    theirs = trajectory(ALL[name], TORCH, **optimizer_options(case))

    if case == "float32":
        assert torch.equal(mine, theirs)
    assert_close(mine, theirs)


@pytest.mark.parametrize("name", [n for n in SHAPED if n.startswith(("Step", "Multi", "Exp"))])
def test_decays_are_torchs_to_the_last_bit(name: str) -> None:
    """Steps multiply the rate by gamma. A quotient of powers of gamma would become 0 / 0."""
    assert torch.equal(trajectory(SHAPED[name], OURS), trajectory(SHAPED[name], TORCH))


@pytest.mark.parametrize("name", ALL)
def test_a_schedule_continues_from_a_rate_changed_by_hand_as_in_torch(name: str) -> None:
    """The change stays if the scheduler multiplies, and is lost if the scheduler assigns."""
    traces = []
    for library in (OURS, TORCH):
        scheduler = ALL[name](library, optimizer_of(groups=2))
        trace = take_steps(scheduler, 13)
        scheduler.optimizer.param_groups[1]["lr"] *= 0.3
        traces.append(trace + take_steps(scheduler, 40))

    assert_close(*traces)


@pytest.mark.parametrize("name", WITH_CLOSED_FORM)
def test_chained_rates_equal_the_closed_form(name: str) -> None:
    scheduler = SHAPED[name](OURS, optimizer_of(lr=1.0))
    for _ in range(300):
        (chained, _), closed = take_steps(scheduler, 1)[0], scheduler._get_closed_form_lr()

        assert chained == pytest.approx(closed[0], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", SINGLE)
def test_a_step_to_an_epoch_is_torchs(name: str) -> None:
    """The step warns and uses the closed form where torch does. Later steps continue from it."""
    traces, warnings = [], []
    for library in (OURS, TORCH):
        scheduler = SINGLE[name](library, optimizer_of())
        trace = take_steps(scheduler, 3)
        for epoch in (17, 2, 40, 0, 299):
            warnings.append(
                warnings_and_error(lambda epoch=epoch, scheduler=scheduler: scheduler.step(epoch))
            )
            trace += [
                rates_and_momenta(scheduler),
                *(take_steps(scheduler, 1) if epoch < 290 else []),
            ]
        traces.append(trace)

    assert warnings[:5] == warnings[5:]
    assert_close(*traces)


@pytest.mark.parametrize("name", [n for n in SINGLE if n.startswith("CosineAnnealingWarm")])
def test_warm_restarts_in_fractions_of_an_epoch_are_torchs(name: str) -> None:
    def record(scheduler: Any) -> list[Any]:
        counts = (scheduler.T_cur, scheduler.T_i, scheduler.last_epoch)
        return [*rates_and_momenta(scheduler), *counts]

    traces = []
    for library in (OURS, TORCH):
        scheduler, trace = SINGLE[name](library, optimizer_of()), []
        for batch in range(150):
            scheduler.step(batch / 7)
            trace.append(record(scheduler))
        scheduler.step()
        trace.append(record(scheduler))
        traces.append(trace)

    assert_close(*traces)


def test_negative_and_fractional_milestones_are_never_reached() -> None:
    """The closed form counts them, as in torch."""
    make = factory("MultiStepLR", milestones=(-2, 4.5, 20.0), gamma=0.5)

    assert_close(trajectory(make, OURS, 40), trajectory(make, TORCH, 40))
    assert make(OURS, optimizer_of())._get_closed_form_lr() == [0.05]


def test_a_polynomial_of_0_steps_keeps_the_rate() -> None:
    make = factory("PolynomialLR", total_iters=0)

    assert_close(trajectory(make, OURS, 9), trajectory(make, TORCH, 9))


def test_two_schedulers_of_one_optimizer_step_as_torchs() -> None:
    traces = []
    for library in (OURS, TORCH):
        optimizer = optimizer_of(groups=3)
        first = SINGLE["LinearLR"](library, optimizer)
        second = SINGLE["ExponentialLR"](library, optimizer)
        trace = []
        for _ in range(20):
            optimizer.step()
            first.step()
            second.step()
            trace.append(rates_and_momenta(second))
        traces.append(trace)

    assert_close(*traces)


@pytest.mark.parametrize("name", ["LambdaLR", "MultiplicativeLR"])
def test_each_group_can_have_its_own_function(name: str) -> None:
    def make(library: Any, optimizer: Any) -> Any:
        return getattr(library, name)(optimizer, [lambda e: 0.9, lambda e: 1 / (e + 1)])

    assert_close(trajectory(make, OURS, groups=2), trajectory(make, TORCH, groups=2))

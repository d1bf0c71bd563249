"""Test WarmupStableDecayLR, and `preview`, which returns the rates of any schedule."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from optim.lr_scheduler.schedules import (
    ALL,
    OURS,
    TORCH,
    optimizer_of,
    take_steps,
    trajectory,
    warnings_and_error,
)

from optgen.optim.lr_scheduler import (
    CyclicLR,
    ReduceLROnPlateau,
    ShapedLR,
    WarmupStableDecayLR,
    preview,
)


@pytest.mark.parametrize(
    ("decay", "factors"),
    [
        ("linear", [1, 0.75, 0.5, 0.25, 0, 0]),
        ("sqrt", [1, 0.5, 1 - 0.5**0.5, 1 - 0.75**0.5, 0, 0]),
        ("cosine", [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0, 0]),
    ],
)
@pytest.mark.parametrize("min_factor", [0.0, 0.1])
def test_the_rate_rises_stays_and_falls(
    decay: Any, factors: list[float], min_factor: float
) -> None:
    rates = preview(
        lambda optimizer: WarmupStableDecayLR(optimizer, 3, 2, 4, decay, min_factor),
        steps=11,
        lr=0.8,
    )

    expected = [0.25, 0.5, 0.75, 1.0, 1.0, *(min_factor + (1 - min_factor) * f for f in factors)]
    assert rates == pytest.approx([0.8 * value for value in expected], abs=1e-12)


def test_a_phase_can_have_no_steps() -> None:
    assert preview(lambda o: WarmupStableDecayLR(o, 0, 0, 2), steps=4) == [1, 0.5, 0, 0]
    assert preview(lambda o: WarmupStableDecayLR(o, 0, 3, 0), steps=4) == [1, 1, 1, 0]


def test_stable_steps_can_be_raised_until_the_decay_begins() -> None:
    scheduler = WarmupStableDecayLR(optimizer_of(lr=1.0), 0, 3, 2)
    take_steps(scheduler, 2)
    scheduler.stable_steps = 5

    assert [rate for rate, _ in take_steps(scheduler, 6)] == [1, 1, 1, 0.5, 0, 0]


def test_a_checkpoint_in_the_decay_continues() -> None:
    whole = trajectory(lambda _, optimizer: WarmupStableDecayLR(optimizer, 5, 5, 20), OURS, 40)
    scheduler = WarmupStableDecayLR(optimizer_of(), 5, 5, 20)
    take_steps(scheduler, 17)
    resumed = WarmupStableDecayLR(optimizer_of(), 1, 1, 1, "cosine")
    resumed.load_state_dict(scheduler.state_dict())
    resumed.optimizer.load_state_dict(scheduler.optimizer.state_dict())

    assert take_steps(resumed, 23) == whole[18:].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 2, 3), "Expected non-negative integer warmup_steps, but got -1"),
        ((1, 2.5, 3), "Expected non-negative integer stable_steps, but got 2.5"),
        ((1, 2, "3"), "Expected non-negative integer decay_steps, but got 3"),
        ((1, 2, 3, "poly"), "decay_type must be one of 'linear', 'sqrt' or 'cosine', instead"),
        ((1, 2, 3, "sqrt", 1.1), "Expected min_lr_factor between 0 and 1, but got 1.1"),
    ],
)
def test_invalid_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WarmupStableDecayLR(optimizer_of(), *arguments)


@pytest.mark.parametrize("name", ALL)
def test_a_preview_has_the_rates_of_training(name: str) -> None:
    """A preview with several rates has a group for each rate. It gives no warning."""
    previews: list[Any] = []
    for library in (OURS, TORCH):
        make = partial(ALL[name], library)
        assert (
            warnings_and_error(lambda make=make: previews.append(preview(make, 60, [0.1, 0.05])))
            == []
        )
        previews.append([preview(make, 60, lr) for lr in (0.1, 0.05)])

    expected = trajectory(ALL[name], OURS, 59, groups=2)[:, [0, 2]].T.tolist()
    for rates in previews:
        assert rates[0] == pytest.approx(expected[0], rel=1e-12)
        assert rates[1] == pytest.approx(expected[1], rel=1e-12)


def test_a_preview_can_show_momentum() -> None:
    values = preview(partial(CyclicLR, base_lr=0, max_lr=1, step_size_up=2), 5, key="momentum")

    assert values == pytest.approx([0.9, 0.85, 0.8, 0.85, 0.9])


def test_a_preview_of_reduce_lr_on_plateau_takes_metrics() -> None:
    rates = preview(partial(ReduceLROnPlateau, patience=0), 4, metrics=[3.0, 3.0, 2.0])

    assert rates == pytest.approx([1, 1, 0.1, 0.1])


def test_a_subclass_of_shaped_lr_needs_one_method() -> None:
    class InverseRootLR(ShapedLR):
        def shape(self, epoch: int) -> float:
            return (epoch + 1) ** -0.5

    assert preview(InverseRootLR, 9, 0.3)[8] == pytest.approx(0.1)
    assert InverseRootLR(optimizer_of())._get_closed_form_lr() == [0.1]


def test_a_preview_imports_no_compiler() -> None:
    code = (
        "import sys; from optgen.optim.lr_scheduler import *;"
        "preview(lambda optimizer: CosineAnnealingLR(optimizer, 9), 9);"
        "print([name for name in ('sympy', 'triton', 'torch._dynamo') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"

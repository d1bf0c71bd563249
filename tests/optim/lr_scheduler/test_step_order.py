"""Test the warnings about the order of `step` calls, and about a `step` that was replaced."""

from __future__ import annotations

import copy
import pickle
import types
import weakref
from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import OURS, TORCH, optimizer_of, warnings_and_error
from torch.nn import Parameter

import optgen.optim

OPTIMS = {"torch": torch.optim, "optgen": optgen.optim}
LIBRARIES = {"torch": TORCH, "optgen": OURS}
EARLY_STEP_WARNING = (
    "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`."
)
OVERRIDDEN_STEP_WARNING = (
    "UserWarning: Seems like `optimizer.step()` has been overridden after learning rate"
)
EACH_LIBRARY = pytest.mark.parametrize("library", LIBRARIES)
EACH_OPTIMIZER = pytest.mark.parametrize("optim", OPTIMS)


@EACH_LIBRARY
@EACH_OPTIMIZER
def test_a_scheduler_that_steps_first_warns_once(library: str, optim: str) -> None:
    """The warning has torch's text, and comes once for each scheduler."""
    optimizer = optimizer_of(OPTIMS[optim])
    scheduler = LIBRARIES[library].StepLR(optimizer, 3)

    (text,) = warnings_and_error(scheduler.step)
    assert text.startswith(EARLY_STEP_WARNING)
    assert warnings_and_error(scheduler.step) == []


@EACH_LIBRARY
@EACH_OPTIMIZER
def test_a_scheduler_that_steps_second_gives_no_warning(library: str, optim: str) -> None:
    optimizer = optimizer_of(OPTIMS[optim])
    scheduler = LIBRARIES[library].StepLR(optimizer, 3)
    optimizer.step()

    assert warnings_and_error(scheduler.step) == []
    later = LIBRARIES[library].StepLR(optimizer, 3)
    assert warnings_and_error(later.step) == []


def test_schedulers_do_not_replace_the_step_of_our_optimizers() -> None:
    for schedulers in LIBRARIES.values():
        for optimizer in (optimizer_of(optgen.optim), optimizer_of(optgen.optim, name="LBFGS")):
            schedulers.StepLR(optimizer, 3)

            assert "step" not in vars(optimizer)


def test_schedulers_replace_the_step_of_torchs_optimizer_once() -> None:
    """Only the first scheduler replaces the step. The new step keeps no optimizer alive."""
    optimizer = optimizer_of()
    OURS.StepLR(optimizer, 3)
    first = optimizer.step
    TORCH.StepLR(optimizer, 3)
    OURS.LinearLR(optimizer)
    reference = weakref.ref(optimizer)

    assert optimizer.step is first
    assert first.__name__ == "step"
    del optimizer
    assert reference() is None


@EACH_LIBRARY
def test_a_subclass_with_a_step_of_its_own_gives_no_warning(library: str) -> None:
    class Counting(optgen.optim.SGD):
        count = 0

        def step(self, closure: Any = None) -> Any:
            self.count += 1
            return super().step(closure)

    optimizer = Counting([Parameter(torch.ones(1))], lr=0.1)
    scheduler = LIBRARIES[library].StepLR(optimizer, 3)
    optimizer.step()

    assert warnings_and_error(scheduler.step) == []
    assert optimizer.count == 1


@EACH_LIBRARY
@EACH_OPTIMIZER
def test_a_step_replaced_by_a_method_after_construction_warns(library: str, optim: str) -> None:
    optimizer = optimizer_of(OPTIMS[optim])
    scheduler = LIBRARIES[library].StepLR(optimizer, 3)
    before = optimizer.step
    optimizer.step = types.MethodType(lambda self, closure=None: before(closure), optimizer)
    optimizer.step()

    (text,) = warnings_and_error(scheduler.step)
    assert text.startswith(OVERRIDDEN_STEP_WARNING)


def test_a_step_replaced_by_a_function_before_construction_gives_no_warning() -> None:
    """Torch's constructor raises an error, because a function has no `__func__`."""
    optimizer = optimizer_of()
    before = optimizer.step
    optimizer.step = lambda closure=None: before(closure)
    scheduler = OURS.StepLR(optimizer, 3)
    optimizer.step()

    assert warnings_and_error(scheduler.step) == []
    other = optimizer_of()
    other.step = lambda closure=None: None
    with pytest.raises(AttributeError, match="__func__"):
        TORCH.StepLR(other, 3)


@EACH_OPTIMIZER
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_gives_no_warning(optim: str, make_copy: Any) -> None:
    """The copied optimizer records that it has stepped."""
    scheduler = make_copy(OURS.StepLR(optimizer_of(OPTIMS[optim]), 3))
    scheduler.optimizer.step()

    assert warnings_and_error(scheduler.step) == []


@EACH_OPTIMIZER
def test_a_step_that_a_scaler_skips_gives_no_warning(optim: str) -> None:
    """The first scale is a guess, so the first gradients may overflow."""
    optimizer = optimizer_of(OPTIMS[optim])
    scheduler = OURS.StepLR(optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    (param,) = optimizer.param_groups[0]["params"]
    scaler.scale((param.float() * 1e30).sum()).backward()
    scaler.step(optimizer)

    assert not getattr(optimizer, "_opt_called", False)
    assert warnings_and_error(scheduler.step) == []


def test_sparse_gradients_that_overflowed_give_no_warning() -> None:
    optimizer = optimizer_of()
    scheduler = OURS.StepLR(optimizer, 3)
    (param,) = optimizer.param_groups[0]["params"]
    param.grad = torch.full((1,), torch.inf).to_sparse()

    assert warnings_and_error(scheduler.step) == []


def test_finite_gradients_do_not_silence_the_warning() -> None:
    optimizer = optimizer_of()
    scheduler = OURS.StepLR(optimizer, 3)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)

    assert len(warnings_and_error(scheduler.step)) == 1


def test_the_warning_points_to_the_line_that_steps_the_scheduler() -> None:
    scheduler = OURS.StepLR(optimizer_of(), 3)
    with pytest.warns(UserWarning, match="Detected call") as caught:
        scheduler.step()

    assert caught[0].filename == __file__


def test_constructing_composites_gives_no_warning() -> None:
    """Torch's sequence steps a composite that is its first part, and warns."""

    def make(library: Any) -> None:
        optimizer = optimizer_of()
        inner = library.ChainedScheduler([library.StepLR(optimizer, 3)])
        library.SequentialLR(optimizer, [inner], [])

    assert warnings_and_error(lambda: make(OURS)) == []
    (text,) = warnings_and_error(lambda: make(TORCH))
    assert text.startswith(EARLY_STEP_WARNING)

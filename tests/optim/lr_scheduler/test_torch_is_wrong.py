"""Test that our schedulers do not have some faults of torch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from optim.lr_scheduler.schedules import optimizer_of, take_steps, warnings_and_error
from parity.faults import Faults
from torch.nn import Parameter

fault = Faults()


def rates(scheduler: Any, count: int) -> list[float]:
    """Return the first group's rates: the current one, and those after each step."""
    (now,) = scheduler.get_last_lr()
    return [now, *(rate for rate, _ in take_steps(scheduler, count))]


@fault("SequentialLR")
def a_composite_first(optim: Any) -> None:
    """A composite (a scheduler made of schedulers) as its first part is one step ahead."""
    optimizer = optimizer_of(lr=1.0)
    inner = optim.lr_scheduler.ChainedScheduler([optim.lr_scheduler.ExponentialLR(optimizer, 0.5)])
    scheduler = optim.lr_scheduler.SequentialLR(optimizer, [inner], [])

    assert rates(scheduler, 2) == [1, 0.5, 0.25]


@fault("SequentialLR")
def a_composite_later(optim: Any) -> None:
    """A composite as a later part raises NotImplementedError at its milestone."""
    optimizer = optimizer_of(lr=1.0)
    parts = [optim.lr_scheduler.ExponentialLR(optimizer, gamma) for gamma in (0.5, 0.1)]
    inner = optim.lr_scheduler.ChainedScheduler(parts[1:])
    scheduler = optim.lr_scheduler.SequentialLR(optimizer, [parts[0], inner], [2])

    assert rates(scheduler, 3) == [1, 0.5, 1, 0.1]


@fault("SequentialLR")
def order_of_composites(optim: Any) -> None:
    """Its constructor warns of the order of `step` calls if a part is a composite."""
    optimizer = optimizer_of()
    inner = optim.lr_scheduler.ChainedScheduler([optim.lr_scheduler.StepLR(optimizer, 3)])

    assert warnings_and_error(lambda: optim.lr_scheduler.SequentialLR(optimizer, [inner], [])) == []


@fault("SequentialLR")
def resumed_by_number(optim: Any) -> None:
    """With `last_epoch` it always starts at the initial rate of its first part."""
    optimizer = optimizer_of(lr=1.0)
    parts = [optim.lr_scheduler.ExponentialLR(optimizer, gamma) for gamma in (0.5, 0.1)]
    scheduler = optim.lr_scheduler.SequentialLR(optimizer, parts, [3], last_epoch=3)

    assert scheduler.last_epoch == 4
    assert scheduler.get_last_lr() == [0.1]


@fault("SequentialLR")
def half_a_state(optim: Any) -> None:
    """It silently loads part of a state that has fewer schedulers."""
    optimizer = optimizer_of()
    parts = [optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for _ in range(2)]
    scheduler = optim.lr_scheduler.SequentialLR(optimizer, parts, [3])
    state = scheduler.state_dict()

    with pytest.raises(ValueError):
        scheduler.load_state_dict(state | {"_schedulers": state["_schedulers"][:1]})


def resumed_at_a_decay(name: str, *arguments: Any) -> Any:
    def check(optim: Any) -> None:
        """If `last_epoch` is a step that changes the rate, resuming changes it twice."""
        kind = getattr(optim.lr_scheduler, name)
        scheduler = kind(optimizer_of(lr=1.0), *arguments)
        take_steps(scheduler, 3)
        optimizer = optimizer_of()
        optimizer.load_state_dict(scheduler.optimizer.state_dict())
        resumed = kind(optimizer, *arguments, last_epoch=2)

        assert resumed.get_last_lr() == scheduler.get_last_lr()

    return check


fault("StepLR")(resumed_at_a_decay("StepLR", 3, 0.5))
fault("MultiStepLR")(resumed_at_a_decay("MultiStepLR", [3], 0.5))
fault("ConstantLR")(resumed_at_a_decay("ConstantLR", 0.5, 3))


@fault("ConstantLR")
def a_constant_of_no_steps(optim: Any) -> None:
    """With `total_iters=0` the factor holds for ever."""
    scheduler = optim.lr_scheduler.ConstantLR(optimizer_of(lr=1.0), 0.5, 0)

    assert rates(scheduler, 2) == [1, 1, 1]


@fault("ConstantLR")
def a_constant_of_nothing(optim: Any) -> None:
    """It accepts `factor=0`, and then divides by zero at the end."""
    scheduler = optim.lr_scheduler.ConstantLR(optimizer_of(lr=1.0), 0, 2)

    assert rates(scheduler, 3) == [0, 0, 1, 1]


@fault("LinearLR")
def a_line_of_no_steps(optim: Any) -> None:
    """With `total_iters=0` it stays at `start_factor` for ever."""
    scheduler = optim.lr_scheduler.LinearLR(optimizer_of(lr=1.0), 0.5, 1.0, 0)

    assert rates(scheduler, 2) == [1, 1, 1]


@fault("PolynomialLR")
def a_polynomial_of_no_steps(optim: Any) -> None:
    """With `total_iters=0` its closed form divides by zero."""
    scheduler = optim.lr_scheduler.PolynomialLR(optimizer_of(lr=1.0), 0)

    assert scheduler._get_closed_form_lr() == [1]


@fault("CosineAnnealingWarmRestarts")
def a_restart_by_number(optim: Any) -> None:
    """`step(epoch)` may miss a restart by rounding: `eta_min` instead of the highest rate."""
    scheduler = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer_of(lr=1.0), 1, 3)
    scheduler.step(1 + 3 + 9 + 27 + 81)

    assert scheduler.get_last_lr() == [1]


@fault("CosineAnnealingWarmRestarts")
def restarts_resumed(optim: Any) -> None:
    """With `last_epoch` beyond the first restarts it uses the length of a wrong cycle."""
    kind = optim.lr_scheduler.CosineAnnealingWarmRestarts
    scheduler = kind(optimizer_of(), 2, 2)
    take_steps(scheduler, 9)
    optimizer = optimizer_of()
    optimizer.load_state_dict(scheduler.optimizer.state_dict())
    resumed = kind(optimizer, 2, 2, last_epoch=8)

    assert (resumed.T_cur, resumed.T_i) == (3, 8)
    assert take_steps(resumed, 9) == take_steps(scheduler, 9)


@fault("CyclicLR")
def a_cycle_after_another_schedule(optim: Any) -> None:
    """Its first rate is the `initial_lr` of an earlier scheduler, not `base_lr`."""
    optimizer = optimizer_of(lr=1.0)
    optim.lr_scheduler.StepLR(optimizer, 3)

    assert optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1).get_last_lr() == [0.01]


@fault("CyclicLR")
def a_state_that_is_loaded_twice(optim: Any) -> None:
    """Loading a state removes a key from it, so it cannot be loaded again."""
    scheduler = optim.lr_scheduler.CyclicLR(optimizer_of(), 0.01, 0.1)
    state = scheduler.state_dict()
    scheduler.load_state_dict(state)
    scheduler.load_state_dict(state)


@fault("CyclicLR")
def a_cycle_from_a_tensor(optim: Any) -> None:
    """A tensor `base_lr` becomes the group's lr itself, and later steps change it."""
    scheduler = optim.lr_scheduler.CyclicLR(optimizer_of(), torch.tensor(0.01), 0.1)
    take_steps(scheduler, 5)

    assert scheduler.base_lrs == [torch.tensor(0.01)]


@fault("ReduceLROnPlateau")
def a_plateau_of_one_tensor(optim: Any) -> None:
    """A tensor lr that groups share is reduced once for each group."""
    lr = torch.tensor(1.0, dtype=torch.float64)
    groups = [{"params": [Parameter(torch.ones(1))]} for _ in range(3)]
    optimizer = torch.optim.SGD(groups, lr=lr)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    scheduler.step(1.0)
    scheduler.step(1.0)

    assert lr == 0.5


@fault("LambdaLR")
def functions_of_one_tensor(optim: Any) -> None:
    """If groups share a tensor lr, all of them get the last group's rate."""
    groups = [{"params": [Parameter(torch.ones(1))]} for _ in range(2)]
    optimizer = torch.optim.SGD(groups, lr=torch.tensor(1.0, dtype=torch.float64))
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, [lambda e: 0.5**e, lambda e: 0.1**e])
    optimizer.step()
    scheduler.step()

    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.5, 0.1]


@fault("LambdaLR")
def a_builtin_function(optim: Any) -> None:
    """`state_dict` fails if a function is a builtin, which has no attributes."""
    scheduler = optim.lr_scheduler.LambdaLR(optimizer_of(), float)
    scheduler.lr_lambdas = [abs]

    assert scheduler.state_dict()["lr_lambdas"] == [None]


@fault("LRScheduler")
def order_after_overflow(optim: Any) -> None:
    """If GradScaler skips the first step for an overflow, the scheduler warns of a wrong order."""
    optimizer = optimizer_of()
    scheduler = optim.lr_scheduler.StepLR(optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    scaler.scale((optimizer.param_groups[0]["params"][0] * 1e30).sum()).backward()
    scaler.step(optimizer)

    assert warnings_and_error(scheduler.step) == []


@fault("LRScheduler")
def order_of_a_copy(optim: Any) -> None:
    """A copy made before the first step warns that the optimizer's step was overridden."""
    scheduler = copy.deepcopy(optim.lr_scheduler.StepLR(optimizer_of(), 3))
    scheduler.optimizer.step()

    assert warnings_and_error(scheduler.step) == []


@fault("LRScheduler")
def a_function_as_step(optim: Any) -> None:
    """Its constructor fails if the optimizer's `step` was replaced by a function."""
    optimizer = optimizer_of()
    step = optimizer.step
    optimizer.step = lambda closure=None: step(closure)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 3)
    optimizer.step()

    assert warnings_and_error(scheduler.step) == []


test_our_class_lacks_the_fault, test_torchs_class_lacks_the_fault, test_the_page_lists_the_fault = (
    fault.tests()
)

"""Create schedulers of torch's library or ours by name, and record their trajectories."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch_versions import HAS_2_13

import optgen.optim


def library(optim: Any) -> Any:
    """Return the schedulers of torch.optim or of its mirror, including SWALR."""
    return SimpleNamespace(**vars(optim.lr_scheduler) | {"SWALR": optim.swa_utils.SWALR})


TORCH, OURS = library(torch.optim), library(optgen.optim)
SchedulerFactory = Callable[[Any, Any], Any]  # (library, optimizer) -> scheduler


def factory(name: str, **arguments: Any) -> SchedulerFactory:
    """Return a function that creates the scheduler with this name and these arguments."""
    return lambda library, optimizer: getattr(library, name)(optimizer, **arguments)


class ExponentialDecay:
    """A function of the step, as an object whose attributes a checkpoint can hold."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: float) -> float:
        return float(self.rate**step)


SHAPED: dict[str, SchedulerFactory] = {
    "StepLR-1": factory("StepLR", step_size=1, gamma=0.9),
    "StepLR-30": factory("StepLR", step_size=30),
    "StepLR-7-up": factory("StepLR", step_size=7, gamma=1.1),
    "MultiStepLR": factory("MultiStepLR", milestones=[3, 30, 30, 100], gamma=0.3),
    "MultiStepLR-0": factory("MultiStepLR", milestones=(0, 299)),
    "ConstantLR": factory("ConstantLR"),
    "ConstantLR-40": factory("ConstantLR", factor=0.7, total_iters=40),
    "ConstantLR-1": factory("ConstantLR", factor=1, total_iters=1),
    "LinearLR": factory("LinearLR"),
    "LinearLR-down": factory("LinearLR", start_factor=1.0, end_factor=0.2, total_iters=250),
    "LinearLR-up": factory("LinearLR", start_factor=1e-3, total_iters=299),
    "LinearLR-to-0": factory("LinearLR", start_factor=0.5, end_factor=0.0, total_iters=64),
    "ExponentialLR": factory("ExponentialLR", gamma=0.97),
    "ExponentialLR-far": factory("ExponentialLR", gamma=0.05),
    "ExponentialLR-0": factory("ExponentialLR", gamma=0.0),
    "PolynomialLR": factory("PolynomialLR"),
    "PolynomialLR-2.5": factory("PolynomialLR", total_iters=280, power=2.5),
    "PolynomialLR-root": factory("PolynomialLR", total_iters=300, power=0.5),
    "CosineAnnealingLR-1": factory("CosineAnnealingLR", T_max=1),
    "CosineAnnealingLR-17": factory("CosineAnnealingLR", T_max=17, eta_min=0.01),
    "CosineAnnealingLR-100": factory("CosineAnnealingLR", T_max=100),
    "CosineAnnealingLR-149": factory("CosineAnnealingLR", T_max=149, eta_min=0.3),
    "CosineAnnealingLR-300": factory("CosineAnnealingLR", T_max=300, eta_min=1e-5),
    "CosineAnnealingLR-350": factory("CosineAnnealingLR", T_max=350),
    "MultiplicativeLR": factory("MultiplicativeLR", lr_lambda=lambda e: 0.97 + 0.02 * (e % 2)),
    "SWALR": factory("SWALR", swa_lr=0.02),
    "SWALR-linear": factory("SWALR", swa_lr=0.3, anneal_epochs=200, anneal_strategy="linear"),
    "SWALR-0": factory("SWALR", swa_lr=0.3, anneal_epochs=0),
}
"""Schedulers that compute the next rate from the current one."""

ASSIGNED: dict[str, SchedulerFactory] = {
    "LambdaLR": factory("LambdaLR", lr_lambda=lambda e: 1 / (1 + e)),
    "LambdaLR-object": factory("LambdaLR", lr_lambda=ExponentialDecay(0.98)),
    "CosineAnnealingWarmRestarts-1": factory("CosineAnnealingWarmRestarts", T_0=1),
    "CosineAnnealingWarmRestarts-50": factory("CosineAnnealingWarmRestarts", T_0=50, eta_min=0.01),
    "CosineAnnealingWarmRestarts-2": factory("CosineAnnealingWarmRestarts", T_0=10, T_mult=2),
    "CosineAnnealingWarmRestarts-3": factory("CosineAnnealingWarmRestarts", T_0=4, T_mult=3),
    "CyclicLR": factory("CyclicLR", base_lr=0.01, max_lr=0.2, step_size_up=20),
    "CyclicLR-uneven": factory(
        "CyclicLR", base_lr=0.02, max_lr=0.1, step_size_up=7, step_size_down=40, mode="triangular2"
    ),
    "CyclicLR-range": factory(
        "CyclicLR", base_lr=0.0, max_lr=0.1, step_size_up=33, mode="exp_range", gamma=0.99
    ),
    "CyclicLR-scale_fn": factory(
        "CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=9, scale_fn=ExponentialDecay(0.9)
    ),
    "CyclicLR-scale_fn-iterations": factory(
        "CyclicLR",
        base_lr=0.01,
        max_lr=0.1,
        step_size_up=9,
        scale_fn=lambda t: 1 / (1 + t),
        scale_mode="iterations",
        cycle_momentum=False,
    ),
    "OneCycleLR": factory("OneCycleLR", max_lr=0.5, total_steps=300),
    "OneCycleLR-linear": factory(
        "OneCycleLR", max_lr=0.5, epochs=30, steps_per_epoch=11, anneal_strategy="linear"
    ),
    "OneCycleLR-three": factory(
        "OneCycleLR", max_lr=0.5, total_steps=310, three_phase=True, pct_start=0.4, div_factor=10.0
    ),
    "OneCycleLR-no-momentum": factory(
        "OneCycleLR", max_lr=0.5, total_steps=301, cycle_momentum=False, final_div_factor=10.0
    ),
}
"""Schedulers whose next rate does not depend on the current one."""

SINGLE = SHAPED | ASSIGNED


def sequence(milestones: list[int], *parts: SchedulerFactory) -> SchedulerFactory:
    return lambda library, optimizer: library.SequentialLR(
        optimizer, [make(library, optimizer) for make in parts], milestones
    )


def chain(*parts: SchedulerFactory) -> SchedulerFactory:
    return lambda library, optimizer: library.ChainedScheduler(
        [make(library, optimizer) for make in parts]
    )


COMPOSITES: dict[str, SchedulerFactory] = {
    "warm-up-and-cosine": sequence([20], SINGLE["LinearLR-up"], SINGLE["CosineAnnealingLR-100"]),
    "three": sequence(
        [10, 150], SINGLE["ConstantLR-40"], SINGLE["OneCycleLR"], SINGLE["ExponentialLR"]
    ),
    "restarts": sequence([5], SINGLE["LinearLR"], SINGLE["CosineAnnealingWarmRestarts-2"]),
    # Before 2.13 torch keeps the rate of a first part that has no steps.
    **(
        {"no-steps-first": sequence([0], SINGLE["StepLR-30"], SINGLE["PolynomialLR-2.5"])}
        if HAS_2_13
        else {}
    ),
    "same-milestone": sequence([8, 8], *(SINGLE[n] for n in ("LinearLR", "LambdaLR", "StepLR-1"))),
    "a-product": chain(SINGLE["ConstantLR-40"], SINGLE["ExponentialLR"], SINGLE["StepLR-30"]),
    "product-of-cosines": chain(SINGLE["CosineAnnealingLR-100"], SINGLE["CosineAnnealingLR-149"]),
    "product-of-chains": chain(
        chain(SINGLE["LinearLR-up"], SINGLE["MultiplicativeLR"]), SINGLE["PolynomialLR-root"]
    ),
    "averaging": sequence([160], SINGLE["MultiplicativeLR"], SINGLE["SWALR"]),
    "product-with-sequence": chain(
        sequence([50], SINGLE["LinearLR"], SINGLE["StepLR-7-up"]), SINGLE["ExponentialLR"]
    ),
}
ALL = SINGLE | COMPOSITES


def optimizer_of(
    optim: Any = torch.optim, *, groups: int = 1, lr: Any = 0.1, name: str = "SGD", **more: Any
) -> Any:
    """Return an optimizer of parameters without gradients, whose steps change nothing."""
    if name == "SGD":
        more = {"momentum": 0.9} | more
    params = [{"params": [Parameter(torch.ones(1))]} for _ in range(groups)]
    for index, group in enumerate(params[1:], 1):
        group["lr"] = (lr.clone() if isinstance(lr, Tensor) else lr) / (2 * index)
    return getattr(optim, name)(params, lr=lr, **more)


def rates_and_momenta(scheduler: Any) -> list[Any]:
    """Return the rates and momenta of all groups, as numbers."""
    values = []
    for group, last in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        momentum = group["momentum"] if "momentum" in group else group["betas"][0]
        assert float(group["lr"]) == float(last)
        values += [float(group["lr"]), float(momentum)]
    return values


def take_steps(scheduler: Any, count: int) -> list[list[Any]]:
    """Take some steps; return the rates and momenta after each step."""
    trace = []
    for _ in range(count):
        scheduler.optimizer.step()
        scheduler.step()
        trace.append(rates_and_momenta(scheduler))
    return trace


def trajectory(
    make: SchedulerFactory, library: Any, count: int = 300, **optimizer_options: Any
) -> Any:
    """Return the rates and momenta before training and after each step."""
    scheduler = make(library, optimizer_of(**optimizer_options))
    return torch.tensor(
        [rates_and_momenta(scheduler), *take_steps(scheduler, count)], dtype=torch.float64
    )


def assert_close(mine: Any, theirs: Any, atol: float = 1e-18) -> None:
    """Check that two trajectories are equal to a relative error of 1e-12."""
    pair = (torch.as_tensor(trace, dtype=torch.float64) for trace in (mine, theirs))
    torch.testing.assert_close(*pair, rtol=1e-12, atol=atol, equal_nan=True)


def warnings_and_error(function: Callable[[], object]) -> list[str]:
    """Return the texts of a call's warnings, then of its error, if any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function()
            errors = []
        except Exception as error:
            errors = [f"{type(error).__name__}: {error}"]
    return [f"{each.category.__name__}: {each.message}" for each in caught] + errors

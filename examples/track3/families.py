"""Make the results of a family: their logs have most options in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from examples.track3.result import ClassFactory, Group, Options, Result, matrix_groups, other_groups
from examples.track3.schedules import Schedule, cooldown, power_cooldown


def weight_decay_result(
    number: int,
    title: str,
    log: str,
    steps: int,
    factory: ClassFactory,
    lr: float,
    decay: float,
    **options: Any,
) -> Result:
    """Return a result with weight decay of the matrices, and one schedule for all parameters."""
    schedule = cooldown(steps, 0.7)
    matrices = matrix_groups(lr, schedule, weight_decay=decay, **options)
    return Result(number, title, log, steps, factory, matrices, other_groups(schedule))


def sphere_result(
    number: int, title: str, log: str, steps: int, factory: ClassFactory, **more: Any
) -> Result:
    """Return a result whose matrices stay on a sphere: steps do not change their norms."""
    matrices = matrix_groups(0.018, cooldown(steps, 1.0))
    others = other_groups(cooldown(steps, 0.4))
    return Result(number, title, log, steps, factory, matrices, others, scaled=True, **more)


def update_floor_result(
    number: int, title: str, log: str, steps: int, factory: ClassFactory, *kinds: str
) -> Result:
    """Return a result whose modifier is `update_floor`.

    Matrices whose names contain one of `kinds` use SOAP.
    """
    schedule = cooldown(steps, 0.7)
    matrices = {kind: Group(0.0375, schedule, {"soap": True}) for kind in kinds} | matrix_groups(
        0.0375, schedule
    )
    return Result(number, title, log, steps, factory, matrices, other_groups(schedule))


def soft_muon_result(
    number: int,
    title: str,
    log: str,
    steps: int,
    factory: ClassFactory,
    step_options: Callable[[float], Options],
    end: int = 3105,
    beta2: float = 0.95,
    others_step_options: Callable[[float], Options] = lambda step: {},
) -> Result:
    """Return result 20 or a variant of it. Rates fall as powers of the steps left until `end`."""

    def cooldown_of(slope: float, lr: float) -> Schedule:
        return power_cooldown(end, slope / lr)

    value = {"soap": True, "value": True}
    kinds: dict[str, Options] = {"mlp.": {"soap": True}, "attn.v.": value, "": {}}
    schedule = cooldown_of(3.3169534699576625e-06, 0.0375)
    matrices = {
        kind: Group(0.0375, schedule, options, step_options) for kind, options in kinds.items()
    }
    others = other_groups(
        cooldown_of(4.976805410800738e-05, 0.3),
        cooldown_of(5.184172302917436e-07, 1 / 320),
        cooldown_of(1.6589351369335795e-06, 0.01),
        beta2=beta2,
        step_options=others_step_options,
    )
    return Result(number, title, log, steps, factory, matrices, others)

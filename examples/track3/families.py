"""Make results of families, whose logs have most options in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from examples.track3.result import ClassFactory, Group, Options, Result, matrices, others
from examples.track3.schedules import Schedule, cooled, power_cool


def decayed(
    number: int,
    title: str,
    log: str,
    steps: int,
    rule: ClassFactory,
    lr: float,
    decay: float,
    **options: Any,
) -> Result:
    """Return a result with weight decay on matrices, and one schedule for all parameters."""
    schedule = cooled(steps, 0.7)
    hidden = matrices(lr, schedule, weight_decay=decay, **options)
    return Result(number, title, log, steps, rule, hidden, others(schedule))


def on_sphere(
    number: int, title: str, log: str, steps: int, rule: ClassFactory, **more: Any
) -> Result:
    """Return a result whose matrices keep their norms, as on a sphere."""
    hidden = matrices(0.018, cooled(steps, 1.0))
    rest = others(cooled(steps, 0.4))
    return Result(number, title, log, steps, rule, hidden, rest, scaled=True, **more)


def floored(
    number: int, title: str, log: str, steps: int, rule: ClassFactory, *kinds: str
) -> Result:
    """Return a result with a floor under updates.

    Matrices whose names contain one of `kinds` use SOAP.
    """
    schedule = cooled(steps, 0.7)
    hidden = {kind: Group(0.0375, schedule, {"soap": True}) for kind in kinds} | matrices(
        0.0375, schedule
    )
    return Result(number, title, log, steps, rule, hidden, others(schedule))


def softened(
    number: int,
    title: str,
    log: str,
    steps: int,
    rule: ClassFactory,
    changing: Callable[[float], Options],
    end: int = 3105,
    beta2: float = 0.95,
    others_changing: Callable[[float], Options] = lambda step: {},
) -> Result:
    """Return result 20 or a variant of it. Rates fall as powers of the steps left until `end`."""

    def falling(slope: float, lr: float) -> Schedule:
        return power_cool(end, slope / lr)

    value = {"soap": True, "value": True}
    kinds: dict[str, Options] = {"mlp.": {"soap": True}, "attn.v.": value, "": {}}
    schedule = falling(3.3169534699576625e-06, 0.0375)
    hidden = {kind: Group(0.0375, schedule, options, changing) for kind, options in kinds.items()}
    rest = others(
        falling(4.976805410800738e-05, 0.3),
        falling(5.184172302917436e-07, 1 / 320),
        falling(1.6589351369335795e-06, 0.01),
        beta2=beta2,
        changing=others_changing,
    )
    return Result(number, title, log, steps, rule, hidden, rest)

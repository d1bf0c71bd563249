"""Make the results of a family: their logs have most options in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from examples.track3.result import (
    ClassFactory,
    Group,
    Options,
    Result,
    matrix_groups,
    other_groups,
    spec_path,
)
from examples.track3.schedules import cooldown, power_cooldown
from examples.track3.step_options import look_ahead_44, soap_muon_options
from optgen import compose
from optgen.spec.declare import Modifier

MATRIX_SLOPE = 3.3169534699576625e-06
OTHER_SLOPES = (4.976805410800738e-05, 5.184172302917436e-07, 1.6589351369335795e-06)
"""Factors of a power of the steps left: for matrices, and for embedding, head and vectors."""


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

    value = {"soap": True, "value": True}
    kinds: dict[str, Options] = {"mlp.": {"soap": True}, "attn.v.": value, "": {}}
    schedule = power_cooldown(end, MATRIX_SLOPE / 0.0375)
    matrices = {
        kind: Group(0.0375, schedule, options, step_options) for kind, options in kinds.items()
    }
    others = power_groups(end, beta2, others_step_options)
    return Result(number, title, log, steps, factory, matrices, others)


def power_groups(
    end: int, beta2: float, step_options: Callable[[float], Options]
) -> dict[str, Group]:
    """Return the groups of embedding, head and vectors, whose rates fall as powers until `end`."""
    rates = (0.3, 1 / 320, 0.01)
    schedules = (power_cooldown(end, a / lr) for a, lr in zip(OTHER_SLOPES, rates, strict=True))
    return other_groups(*schedules, rates=rates, beta2=beta2, step_options=step_options)


def soap_muon_result(
    number: int,
    title: str,
    log: str,
    factory: ClassFactory,
    average: Modifier,
    average_options: Callable[[float], Options] = lambda step: {},
) -> Result:
    """Return result 44 or a variant of it.

    The modifier `average` moves all parameters ahead, the embedding without `average_options`. Of
    AdamW's parameters, vectors have no correction for means that begin at zero.
    """

    def all_options(step: float) -> Options:
        return {**look_ahead_44(step), **average_options(step)}

    schedule = power_cooldown(2900, MATRIX_SLOPE / 0.0375)
    matrices = {
        kind: Group(0.0375, schedule, options, lambda t: {**soap_muon_options(t), **all_options(t)})
        for kind, options in {"attn.proj.": {"gated": True}, "": {}}.items()
    }
    groups = power_groups(2900, 0.99, all_options)
    beta2s = {".gains": 0.99, "attn.proj.bias": 0.9965, "vectors": 0.997}
    vectors = groups.pop("vectors")
    for part, beta2 in beta2s.items():
        options = {**vectors.options, "betas": (0.8, beta2), "corrected": False}
        groups[part] = replace(vectors, options=options)
    groups["embed"] = replace(groups["embed"], step_options=look_ahead_44)
    adam = partial(compose, spec_path("aux_adam"), average)
    return Result(number, title, log, 2900, factory, matrices, groups, adam)

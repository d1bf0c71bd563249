"""Define the stages of a warm-up: factors of the learning rate as functions of the step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, unique

from optgen.keyed.errors import Refused

ENDLESS = 1 << 63  # steps: more than any training takes


@unique
class WarmupPolicy(Enum):
    """Formula for the factor of a stage at step i, the number of steps taken so far.

    * NONE: 1.
    * LINEAR: value + (1 - value) i / max_iters, from `value` to 1.
    * CONSTANT: value.
    * POLY: (1 - i / decay_iters) ** value, and 0 after decay_iters, which defaults to max_iters.
    * STEP: value ** (i // decay_iters), where decay_iters defaults to 1.
    * INVSQRT: 1 / sqrt(i), and 1 at the start.
    * COSINE_ANNEALING_WARM_RESTARTS: from 1 to `value` along half a cosine, restarted every
      sgdr_period steps.
    * INTERPOLATE: from `value` to `end_value` along a line, between start_interpolating_iters and
      max_iters.
    """

    NONE = "none"
    LINEAR = "linear"
    CONSTANT = "constant"
    POLY = "poly"
    STEP = "step"
    INVSQRT = "inv_sqrt"
    COSINE_ANNEALING_WARM_RESTARTS = "cosine_annealing_warm_restarts"
    INTERPOLATE = "interpolate"


@dataclass
class WarmupStage:
    """A stage of a warm-up.

    Args:
        policy (WarmupPolicy): How the factor depends on the step.
        max_iters (int): The last step of the stage, counted from the start of the training.
        value (float): The `value` in the formula of the policy. Default: 1.0.
        lr_scale (float): A constant factor for the whole stage. Default: 1.0.
        decay_iters (int): For POLY and STEP, in steps. Default: -1, not set.
        sgdr_period (int): For COSINE_ANNEALING_WARM_RESTARTS, in steps. Default: 1.
        start_interpolating_iters (int, optional): For INTERPOLATE, the step to begin at.
        end_value (float, optional): For INTERPOLATE, the factor at `max_iters`.
    """

    policy: WarmupPolicy = WarmupPolicy.LINEAR
    max_iters: int = 1
    value: float = 1.0
    lr_scale: float = 1.0
    decay_iters: int = -1
    sgdr_period: int = 1
    start_interpolating_iters: int | None = None
    end_value: float | None = None


def stage_factor(stage: WarmupStage, iteration: int) -> float:
    """Return the factor of the learning rate at a step of a stage."""
    return _FACTORS[stage.policy](stage, iteration) * stage.lr_scale


def complete_stages(stages: Sequence[WarmupStage], final: float | None) -> list[WarmupStage]:
    """Check stages, and return copies with defaults filled in and a final endless stage.

    Args:
        stages: The stages, in order.
        final: The factor after the last stage; None for the factor at its last step.

    Raises:
        ValueError: A stage does not end after the one before, lacks a value that its policy needs,
            or has an unknown policy.
    """
    completed = []
    previous_end = 0
    for original in stages:
        stage = replace(original, policy=WarmupPolicy(original.policy))
        if stage.max_iters <= previous_end:
            raise Refused(
                f"Max iter of the stage {stage} must be greater than the previous max iter "
                f"{previous_end}"
            )
        _check_stage(stage)
        previous_end = stage.max_iters
        completed.append(_with_decay_iters(stage))
    if final is None:
        final = stage_factor(completed[-1], previous_end) if completed else 1.0
    return [*completed, WarmupStage(WarmupPolicy.CONSTANT, max_iters=ENDLESS, value=final)]


def _check_stage(stage: WarmupStage) -> None:
    if stage.policy is WarmupPolicy.COSINE_ANNEALING_WARM_RESTARTS and stage.sgdr_period < 1:
        raise ValueError(f"sgdr_period must be at least 1, but is {stage.sgdr_period}")
    if stage.policy is not WarmupPolicy.INTERPOLATE:
        return
    for name in ("start_interpolating_iters", "end_value"):
        if getattr(stage, name) is None:
            raise Refused(f"{name} must be set for INTERPOLATE policy")
    if stage.max_iters <= (stage.start_interpolating_iters or 0):
        raise Refused(
            f"max_iters ({stage.max_iters}) must be greater than start_interpolating_iters "
            f"({stage.start_interpolating_iters}) for INTERPOLATE policy to avoid division by zero"
        )


def _with_decay_iters(stage: WarmupStage) -> WarmupStage:
    if stage.decay_iters > 0:
        return stage
    default = 1 if stage.policy is WarmupPolicy.STEP else stage.max_iters
    return replace(stage, decay_iters=default)


def _linear(stage: WarmupStage, i: int) -> float:
    return stage.value + (1.0 - stage.value) * i / stage.max_iters


def _poly(stage: WarmupStage, i: int) -> float:
    return math.pow(max(0.0, 1 - i / stage.decay_iters), stage.value)


def _step(stage: WarmupStage, i: int) -> float:
    return math.pow(stage.value, i // stage.decay_iters)


def _cosine(stage: WarmupStage, i: int) -> float:
    angle = math.pi * (i % stage.sgdr_period) / stage.sgdr_period
    return stage.value + (1.0 - stage.value) * (0.5 * (1 + math.cos(angle)))


def _interpolate(stage: WarmupStage, i: int) -> float:
    # `_check_stage` has refused None; the zeros are for type checkers.
    start, end = stage.start_interpolating_iters or 0, stage.end_value or 0.0
    fraction = max(0, i - start) / (stage.max_iters - start)
    return stage.value + (end - stage.value) * fraction


_FACTORS: dict[WarmupPolicy, Callable[[WarmupStage, int], float]] = {
    WarmupPolicy.NONE: lambda stage, i: 1.0,
    WarmupPolicy.LINEAR: _linear,
    WarmupPolicy.CONSTANT: lambda stage, i: stage.value,
    WarmupPolicy.POLY: _poly,
    WarmupPolicy.STEP: _step,
    WarmupPolicy.INVSQRT: lambda stage, i: 1.0 / math.sqrt(max(1, i)),
    WarmupPolicy.COSINE_ANNEALING_WARM_RESTARTS: _cosine,
    WarmupPolicy.INTERPOLATE: _interpolate,
}

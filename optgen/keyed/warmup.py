"""Set learning rates by warm-up stages, and save the progress in the optimizer's state."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import Any

import torch

from optgen.keyed.checkpoint import Refused
from optgen.keyed.keyed import KeyedOptimizer, OptimizerWrapper
from optgen.optim.lr_scheduler.base import set_rates
from optgen.runtime.light_optimizer import with_step_hooks

__all__ = ["WarmupOptimizer", "WarmupPolicy", "WarmupStage"]

logger: logging.Logger = logging.getLogger(__name__)


class WarmupOptimizer(OptimizerWrapper):
    """Wrapper that sets the learning rates of a keyed optimizer by the number of steps taken.

    The rate of the first group is `lr` times the stage's factor. Other groups keep the ratio to
    this rate that they had at construction. Rates are set after every step, and also at
    construction, because the first backward pass may update parameters. A rate that is a tensor is
    changed in place.

    The progress is saved as the state of an additional parameter without elements, which is named
    `param_name`. The state is `{"warmup": tensor([step, stage])}`, int64. It exists after the first
    step or `init_state`.

    Args:
        optimizer (KeyedOptimizer): The optimizer whose rates are set.
        stages (Sequence[WarmupStage]): The stages, in order; they are copied.
        lr (float): The rate that is multiplied by factors. Default: 0.1.
        lr_param (str): The key of the rate in groups. Default: "lr".
        param_name (str): The name of the additional parameter. Default: "__warmup".
        final (float, optional): The factor after the last stage; None keeps the factor of its last
            step. torchrec uses 1. Default: None.

    Raises:
        ValueError: A stage does not end after the one before, or lacks a value that its policy
            needs; `param_name` is taken; or the first group's rate is 0 and another's is not.
    """

    def __init__(
        self,
        optimizer: KeyedOptimizer,
        stages: Sequence[WarmupStage],
        lr: float = 0.1,
        lr_param: str = "lr",
        param_name: str = "__warmup",
        *,
        final: float | None = None,
    ) -> None:
        super().__init__(optimizer)
        self._stages = complete_stages(stages, final)
        self._lr_param = lr_param
        self._lr = lr
        self._ratios = _ratios([group.get(lr_param) for group in self.param_groups])
        self._warmup_param = torch.nn.Parameter(torch.empty(0))
        self._entries = self._add_entry(param_name, self._warmup_param)
        self._set_lr(iteration=0)

    def _stage_index(self, iteration: int) -> int:
        """Return the index of the stage of a step: the first that has not ended."""
        ended = [iteration > stage.max_iters for stage in self._stages]
        return ended.index(False)

    def _set_lr(self, iteration: int) -> None:
        lr = self._lr * stage_factor(self._stages[self._stage_index(iteration)], iteration)
        pairs = zip(self.param_groups, self._ratios, strict=True)
        set_rates(((group, lr * ratio) for group, ratio in pairs), self._lr_param)

    def _iteration(self) -> int:
        """Return the number of steps taken, from the state."""
        values = self._entries.get(self._warmup_param)
        return int(values["warmup"][0]) if values else 0

    def _save(self, iteration: int) -> None:
        progress = torch.tensor([iteration, self._stage_index(iteration)], dtype=torch.long)
        self._entries[self._warmup_param] = {"warmup": progress}

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Take a step, and set the rates of the next one; return the closure's loss."""
        loss = self._optimizer.step(closure=closure)
        iteration = self._iteration() + 1
        before, after = self._stage_index(iteration - 1), self._stage_index(iteration)
        if before != after:
            old, new = self._stages[before], self._stages[after]
            logger.info("Warmup Optimizer finishing %s switching to %s", old, new)
        self._set_lr(iteration)
        self._save(iteration)
        return loss

    def post_load_state_dict(self) -> None:
        """Set the rates for the loaded step."""
        super().post_load_state_dict()
        iteration = self._iteration()
        logger.info("Warmup Optimizer set to iteration %s", iteration)
        self._set_lr(iteration)

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the optimizer's state and the progress entry, without counting a step."""
        super().init_state(sparse_grad_parameter_names)
        self._save(self._iteration())


def _ratios(rates: list[Any]) -> list[float]:
    """Return the ratio of each group's rate to the first group's; 1 if a group has no rate."""
    numbers = [None if rate is None else float(rate) for rate in rates]
    ratios = []
    for index, rate in enumerate(numbers):
        first = numbers[0]
        if rate is None or first is None or rate == first:
            ratios.append(1.0)
        elif first == 0:
            raise ValueError(
                f"param_groups[0] has a learning rate of 0, and param_groups[{index}] has {rate}: "
                "groups keep their ratio to the first, whose rate must not be 0"
            )
        else:
            ratios.append(rate / first)
    return ratios


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

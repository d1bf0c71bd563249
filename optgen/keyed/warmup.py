"""Set learning rates by warm-up stages, and save the progress in the optimizer's state."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.warmup_stages import WarmupPolicy, WarmupStage, complete_stages, stage_factor
from optgen.keyed.wrappers import OptimizerWrapper
from optgen.optim.lr_scheduler.group_rates import set_rates
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

"""WarmupOptimizer: learning rates that follow stages, saved with the state of the optimizer."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from optgen.keyed.keyed_optimizer import KeyedOptimizer
from optgen.keyed.stages import WarmupPolicy, WarmupStage, multiplier, schedule
from optgen.keyed.wrappers import OptimizerWrapper
from optgen.optim.lr_scheduler.rates import write
from optgen.runtime.light_optimizer import with_step_hooks

__all__ = ["WarmupOptimizer", "WarmupPolicy", "WarmupStage"]

logger: logging.Logger = logging.getLogger(__name__)


class WarmupOptimizer(OptimizerWrapper):
    """Sets the learning rates of a keyed optimizer by the number of steps taken.

    The rate is `lr` times the stage's factor, for the first group; other groups keep their ratio
    to it, as they had it when this was made. It is set now, for whoever updates in the first
    backward pass, and after every step for the next one. A rate that is a tensor is filled.

    What is saved is a parameter of its own, without elements, named `param_name`, whose state is
    `{"warmup": tensor([step, stage])}`, int64: there after the first step or `init_state`.

    Args:
        optimizer (KeyedOptimizer): Whose rates to set.
        stages (Sequence[WarmupStage]): The stages, in order; they are copied.
        lr (float): The rate that factors are of. Default: 0.1.
        lr_param (str): The rate's key in groups. Default: "lr".
        param_name (str): The name of the saved entry. Default: "__warmup".
        final (float, optional): The factor after the last stage; None goes on with that of its
            last step. torchrec has 1. Default: None.

    Raises:
        ValueError: A stage does not end after the one before, or lacks what its policy needs;
            `param_name` is taken; or the first group's rate is 0 and another's is not.
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
        self._stages = schedule(stages, final)
        self._lr_param = lr_param
        self._lr = lr
        self._ratios = _ratios([group.get(lr_param) for group in self.param_groups])
        self._warmup_param = torch.nn.Parameter(torch.empty(0))
        self._entries = self._add_entry(param_name, self._warmup_param)
        self._set_lr(0)

    def _stage(self, iteration: int) -> int:
        """The stage of a step: the first that has not ended before it."""
        ended = [iteration > stage.max_iters for stage in self._stages]
        return ended.index(False)

    def _set_lr(self, iteration: int) -> None:
        lr = self._lr * multiplier(self._stages[self._stage(iteration)], iteration)
        pairs = zip(self.param_groups, self._ratios, strict=True)
        write(((group, lr * ratio) for group, ratio in pairs), self._lr_param)

    def _iteration(self) -> int:
        """The number of steps taken, as the state has it."""
        values = self._entries.get(self._warmup_param)
        return int(values["warmup"][0]) if values else 0

    def _save(self, iteration: int) -> None:
        progress = torch.tensor([iteration, self._stage(iteration)], dtype=torch.long)
        self._entries[self._warmup_param] = {"warmup": progress}

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Take a step, and set the rates of the next one; return the closure's loss."""
        loss = self._optimizer.step(closure=closure)
        iteration = self._iteration() + 1
        before, after = self._stage(iteration - 1), self._stage(iteration)
        if before != after:
            old, new = self._stages[before], self._stages[after]
            logger.info("Warmup Optimizer finishing %s switching to %s", old, new)
        self._set_lr(iteration)
        self._save(iteration)
        return loss

    def post_load_state_dict(self) -> None:
        """Set the rates of the step that was loaded."""
        super().post_load_state_dict()
        iteration = self._iteration()
        logger.info("Warmup Optimizer set to iteration %s", iteration)
        self._set_lr(iteration)

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the optimizer's state and its own; no step is counted."""
        super().init_state(sparse_grad_parameter_names)
        self._save(self._iteration())


def _ratios(rates: list[Any]) -> list[float]:
    """Each group's rate in units of the first one's; 1 where there is none."""
    numbers = [None if rate is None else float(rate) for rate in rates]
    ratios = []
    for index, rate in enumerate(numbers):
        first = numbers[0]
        if rate is None or first is None or rate == first:
            ratios.append(1.0)
        elif first == 0:
            raise ValueError(
                f"param_groups[0] has a learning rate of 0, and param_groups[{index}] has {rate}: "
                "the others keep their ratio to the first"
            )
        else:
            ratios.append(rate / first)
    return ratios

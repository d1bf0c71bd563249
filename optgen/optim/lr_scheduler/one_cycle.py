"""Raise the learning rate to its maximum and anneal it to almost 0, in one cycle."""

import math
from typing import Any, Literal

from torch.optim import Optimizer

from optgen.optim.lr_scheduler import cycled_momentum
from optgen.optim.lr_scheduler.argument_checks import check_finite_nonnegative, check_number
from optgen.optim.lr_scheduler.base import LRScheduler
from optgen.optim.lr_scheduler.group_rates import Value, check_optimizer, values_per_group

Phase = dict[str, Any]
"""The group keys of a phase's start and end values, and the step that ends it."""


def _phase(end_step: float, lr_bounds: tuple[str, str], momentum_bounds: tuple[str, str]) -> Phase:
    """Return a phase between two bounds of the rate and two of the momentum: start and end."""
    return {
        "end_step": end_step,
        "start_lr": f"{lr_bounds[0]}_lr",
        "end_lr": f"{lr_bounds[1]}_lr",
        "start_momentum": f"{momentum_bounds[0]}_momentum",
        "end_momentum": f"{momentum_bounds[1]}_momentum",
    }


def _phases(steps: int, pct_start: float, three_phase: bool) -> list[Phase]:
    """Return the phases of a cycle: the way up, and the way down in one phase or in two."""
    up = _phase(float(pct_start * steps) - 1, ("initial", "max"), ("max", "base"))
    if not three_phase:
        return [up, _phase(steps - 1, ("max", "min"), ("base", "max"))]
    down = _phase(float(2 * pct_start * steps) - 2, ("max", "initial"), ("base", "max"))
    return [up, down, _phase(steps - 1, ("initial", "min"), ("max", "max"))]


def _cycle_length(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is not None:
        if total_steps <= 0 or not isinstance(total_steps, int):
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        return total_steps
    if epochs is None or steps_per_epoch is None:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    for name, value in {"epochs": epochs, "steps_per_epoch": steps_per_epoch}.items():
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {value}")
    return epochs * steps_per_epoch


def _check_annealing(pct_start: float, anneal_strategy: str) -> None:
    if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
        raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
    if anneal_strategy not in ("cos", "linear"):
        raise ValueError(
            f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
        )


class OneCycleLR(LRScheduler):
    r"""Raise the learning rate to its maximum, then anneal it to almost 0, batch by batch.

    The rate rises from `max_lr / div_factor` to `max_lr`, then falls to
    `max_lr / div_factor / final_div_factor`. With `three_phase`, as in the paper, it first falls
    back to the rate at which it began. Momentum goes the other way. This scheduler overwrites
    changes of the rate by other code.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        max_lr (float or list): The highest rate, for all groups or one for each.
        total_steps (int, optional): Batches of the whole cycle. Default: epochs * steps_per_epoch.
        epochs (int, optional): Epochs of the whole cycle.
        steps_per_epoch (int, optional): Batches of an epoch.
        pct_start (float): The fraction of the cycle on the way up, in [0, 1]. Default: 0.3.
        anneal_strategy (str): "cos" or "linear". Default: "cos".
        cycle_momentum (bool): Cycle `momentum`, or the first of `betas`, too. Default: True.
        base_momentum (float or list): The momentum at the highest rate. Default: 0.85.
        max_momentum (float or list): The momentum at the lowest rate. Default: 0.95.
        div_factor (float): The highest rate divided by the first. Default: 25.
        final_div_factor (float): The first rate divided by the last. Default: 1e4.
        three_phase (bool): Go down in two phases, the first as steep as the way up. Default: False.
        last_epoch (int): -1 to begin, else the last batch that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range; a list does not have one value for each group;
            the optimizer has no momentum to cycle; or, in `step`, the cycle is over.

    Paper: https://arxiv.org/abs/1708.07120
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        self.total_steps = _cycle_length(total_steps, epochs, steps_per_epoch)
        _check_annealing(pct_start, anneal_strategy)
        check_number("div_factor", div_factor, gt=0)
        check_number("final_div_factor", final_div_factor, gt=0)
        self._schedule_phases = _phases(self.total_steps, pct_start, three_phase)
        self._anneal_func_type = anneal_strategy
        max_lrs = values_per_group("max_lr", optimizer, max_lr)
        check_finite_nonnegative("max_lr", max_lrs)
        momentum_bounds = self._init_momentum(cycle_momentum, max_momentum, base_momentum)
        if last_epoch == -1:
            for group, group_max_lr in zip(optimizer.param_groups, max_lrs, strict=True):
                group["initial_lr"] = group_max_lr / div_factor
                group["max_lr"] = group_max_lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
            if momentum_bounds:
                cycled_momentum.begin(optimizer, self.use_beta1, *momentum_bounds)
        super().__init__(optimizer, last_epoch)

    def _init_momentum(self, cycle: bool, highest: Any, lowest: Any) -> tuple[list[Any], ...]:
        """Return the highest and lowest momentum of each group, or () if momentum is fixed."""
        self.cycle_momentum = cycle
        if not cycle:
            return ()
        self.use_beta1 = cycled_momentum.uses_beta1(self.optimizer)
        upper = values_per_group("max_momentum", self.optimizer, highest)
        lower = values_per_group("base_momentum", self.optimizer, lowest)
        check_finite_nonnegative("max_momentum", upper)
        check_finite_nonnegative("base_momentum", lower)
        return upper, lower

    def _anneal_func(self, start: Any, end: Any, pct: float) -> Any:
        strategy = getattr(self, "_anneal_func_type", None)
        if strategy is None:  # a pickle of an old torch holds the function
            return self.anneal_func(start, end, pct)  # type: ignore[attr-defined]
        if strategy not in ("cos", "linear"):
            raise ValueError(f"Unknown _anneal_func_type: {strategy}")
        anneal = self._annealing_cos if strategy == "cos" else self._annealing_linear
        return anneal(start, end, pct)

    @staticmethod
    def _annealing_cos(start: Any, end: Any, pct: float) -> Any:
        """Go from start to end along half a cosine, as pct goes from 0 to 1."""
        return end + (start - end) / 2.0 * (math.cos(math.pi * pct) + 1)

    @staticmethod
    def _annealing_linear(start: Any, end: Any, pct: float) -> Any:
        """Go from start to end along a line, as pct goes from 0 to 1."""
        return (end - start) * pct + start

    def _phase_and_fraction(self) -> tuple[Phase, float]:
        """Return the phase of `last_epoch`, and the fraction of it that is over."""
        step, start = self.last_epoch, 0.0
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. "
                f"The specified number of total steps is {self.total_steps}"
            )
        for phase in self._schedule_phases[:-1]:
            if step <= phase["end_step"]:
                break
            start = phase["end_step"]
        else:
            phase = self._schedule_phases[-1]
        return phase, (step - start) / (phase["end_step"] - start)

    def _annealed_values(self, name: Literal["lr", "momentum"]) -> list[Any]:
        phase, pct = self._phase_and_fraction()
        start, end = phase[f"start_{name}"], phase[f"end_{name}"]
        groups = self.optimizer.param_groups
        return [self._anneal_func(group[start], group[end], pct) for group in groups]

    def _next_lr(self) -> list[Value]:
        return self._annealed_values("lr")

    def _update_lr(self, epoch: int | None = None) -> None:
        super()._update_lr(epoch)
        if self.cycle_momentum:
            cycled_momentum.write(self.optimizer, self.use_beta1, self._annealed_values("momentum"))

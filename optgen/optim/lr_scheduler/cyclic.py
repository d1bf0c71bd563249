"""Cycle the learning rate between two bounds, and momentum inversely."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from torch.optim import Optimizer

from optgen.optim.lr_scheduler import cycled_momentum
from optgen.optim.lr_scheduler.argument_checks import check_finite_nonnegative
from optgen.optim.lr_scheduler.base import LRScheduler
from optgen.optim.lr_scheduler.group_rates import (
    Value,
    check_optimizer,
    set_rates,
    values_per_group,
)
from optgen.optim.lr_scheduler.user_functions import attributes_to_save

SCALE_MODES = {"triangular": "cycle", "triangular2": "cycle", "exp_range": "iterations"}
"""By mode, the argument of the scale function: the number of the cycle, or of the iteration."""


class CyclicLR(LRScheduler):
    r"""Move the learning rate up and down between two bounds, batch by batch.

    .. math::
        \eta_t = \eta_{base} + (\eta_{\max} - \eta_{base}) \, h(t) \, f(x)

    where :math:`h` goes from 0 to 1 in `step_size_up` steps and back in `step_size_down`. The scale
    :math:`f` of `mode` is 1 (triangular), :math:`2^{1-c}` in cycle :math:`c = 1, 2, \ldots`
    (triangular2), or :math:`\gamma^t` (exp_range). Momentum moves inversely.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        base_lr (float or list): The lower bound, for all groups or one for each.
        max_lr (float or list): The upper bound.
        step_size_up (int): Batches from the lower to the upper bound. Default: 2000.
        step_size_down (int, optional): Batches from the upper bound to the lower. Default:
            `step_size_up`.
        mode (str): "triangular", "triangular2" or "exp_range". Default: "triangular".
        gamma (float): :math:`\gamma` of "exp_range". Default: 1.
        scale_fn (function, optional): :math:`f`, instead of the scale of `mode`.
        scale_mode (str): The argument of `scale_fn`: the number of the "cycle", or of the
            "iterations" so far. Default: "cycle".
        cycle_momentum (bool): Cycle `momentum`, or the first of `betas`, too. Default: True.
        base_momentum (float or list): The momentum at the highest rate. Default: 0.8.
        max_momentum (float or list): The momentum at the lowest rate. Default: 0.9.
        last_epoch (int): -1 to begin, else the last batch that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range; a list does not have one value for each group;
            `mode` is unknown; or the optimizer has no momentum to cycle.

    Paper: https://arxiv.org/abs/1506.01186
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: Literal["cycle", "iterations"] = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        base_lrs = values_per_group("base_lr", optimizer, base_lr)
        self.max_lrs = values_per_group("max_lr", optimizer, max_lr)
        for name, rates in {"base_lr": base_lrs, "max_lr": self.max_lrs}.items():
            check_finite_nonnegative(name, rates)
        check_finite_nonnegative("step_size_up", step_size_up)
        check_finite_nonnegative("step_size_down", 0 if step_size_down is None else step_size_down)
        steps_up = float(step_size_up)
        steps_down = steps_up if step_size_down is None else float(step_size_down)
        self.total_size = steps_up + steps_down
        self.step_ratio = steps_up / self.total_size
        if mode not in SCALE_MODES and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        if mode == "exp_range" and scale_fn is None:
            check_finite_nonnegative("gamma", gamma)
        self.mode: str = mode
        self.gamma = gamma
        self._scale_fn_custom: Any = scale_fn
        self.scale_mode: str = SCALE_MODES[mode] if scale_fn is None else scale_mode
        self._init_momentum(cycle_momentum, base_momentum, max_momentum, last_epoch == -1)
        if last_epoch == -1:
            set_rates(zip(optimizer.param_groups, base_lrs, strict=True))
        super().__init__(optimizer, last_epoch)
        # The groups' initial_lr may come from an earlier scheduler.
        self.base_lrs = base_lrs
        self._update_lr(self.last_epoch)

    def _init_momentum(self, cycle: bool, lowest: Any, highest: Any, at_start: bool) -> None:
        self.cycle_momentum = cycle
        if cycle:
            self.use_beta1 = cycled_momentum.uses_beta1(self.optimizer)
            self.base_momentums = values_per_group("base_momentum", self.optimizer, lowest)
            self.max_momentums = values_per_group("max_momentum", self.optimizer, highest)
            check_finite_nonnegative("base_momentum", self.base_momentums)
            check_finite_nonnegative("max_momentum", self.max_momentums)
            if at_start:
                cycled_momentum.begin(
                    self.optimizer, self.use_beta1, self.max_momentums, self.base_momentums
                )

    @property
    def _scale_fn_ref(self) -> Callable[[float], float]:
        """The scale function of the mode."""
        if self.mode == "exp_range":
            return partial(self._exp_range_scale_fn, self.gamma)
        return {
            "triangular": self._triangular_scale_fn,
            "triangular2": self._triangular2_scale_fn,
        }[self.mode]

    @staticmethod
    def _triangular_scale_fn(x: float) -> float:
        return 1.0

    @staticmethod
    def _triangular2_scale_fn(x: float) -> float:
        return float(1 / (2.0 ** (x - 1)))

    @staticmethod
    def _exp_range_scale_fn(gamma: float, x: float) -> float:
        return float(gamma**x)

    def scale_fn(self, x: float) -> float:
        """Return the scale at a cycle or a step, depending on `scale_mode`."""
        custom: Callable[[float], float] | None = self._scale_fn_custom
        return self._scale_fn_ref(x) if custom is None else custom(x)

    def _height_and_scale(self) -> tuple[float, float]:
        """Return the height of the triangle at `last_epoch`, in [0, 1], and its scale."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        fraction = 1.0 + self.last_epoch / self.total_size - cycle
        if fraction > self.step_ratio:
            height = (fraction - 1) / (self.step_ratio - 1)
        else:
            height = fraction / self.step_ratio
        return height, self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)

    def _next_lr(self) -> list[Value]:
        height, scale = self._height_and_scale()
        bounds = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * height * scale for low, high in bounds]

    def _update_lr(self, epoch: int | None = None) -> None:
        super()._update_lr(epoch)
        if self.cycle_momentum:
            height, scale = self._height_and_scale()
            bounds = zip(self.base_momentums, self.max_momentums, strict=True)
            values = [high - (high - low) * height * scale for low, high in bounds]
            cycled_momentum.write(self.optimizer, self.use_beta1, values)

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes except the optimizer.

        A `scale_fn` that is an object is saved by its attributes; a function is not saved.
        """
        attributes = attributes_to_save(self._scale_fn_custom)
        return {**super().state_dict(), "_scale_fn_custom": attributes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`. `scale_fn` stays that of the constructor."""
        state = dict(state_dict)
        attributes = state.pop("_scale_fn_custom")
        super().load_state_dict(state)
        if attributes is not None:
            vars(self._scale_fn_custom).update(attributes)

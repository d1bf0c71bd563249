"""Schedules that go around, or to the rate of weight averaging: torch's, with checks of ours.

torch's classes accept numbers that fail in a later step, and change groups before all arguments are
checked. Steps, resumed steps and checkpoints are those of our LRScheduler.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch.optim.lr_scheduler as torch_schedulers
from torch.optim import Optimizer
from torch.optim import swa_utils as torch_swa

from optgen.optim.lr_scheduler.base import (
    LRScheduler,
    Value,
    check_finite_nonnegative,
    check_number,
    check_optimizer,
    pair_with_groups,
    set_rates,
    values_per_group,
)
from optgen.optim.lr_scheduler.shaped import half_cosine
from optgen.optim.lr_scheduler.user_functions import attributes_to_save
from optgen.runtime.torch_private import outside_dynamo


class CosineAnnealingWarmRestarts(LRScheduler):
    r"""Anneal the learning rate along half a cosine, with warm restarts.

    .. math::
        \eta_t = \eta_{\min} + (\eta_0 - \eta_{\min}) \, \frac{1 + \cos(\pi T_{cur} / T_i)}{2}

    with :math:`T_{cur}` the steps since the last restart, and :math:`T_i` the steps from the last
    restart to the next.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        T_0 (int): Steps until the first restart, at least 1.
        T_mult (int): Factor by which each cycle is longer than the last, at least 1. Default: 1.
        eta_min (float): The least rate. Default: 0.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.

    Paper: https://arxiv.org/abs/1608.03983
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, (float, int)):
            raise ValueError(
                f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}"
            )
        check_finite_nonnegative("eta_min", eta_min)
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    @outside_dynamo
    def step(self, epoch: Any = None) -> None:
        """Advance by one step, or to a point in time: `epoch + batch / batches` after each batch.

        Args:
            epoch (float, optional): The point in time, at least 0, in the unit of `T_0`.
        """
        if epoch is not None and epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        self._update_lr(epoch)

    def _update_lr(self, epoch: Any = None) -> None:
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        # Steps since the last restart, and from the last restart to the next.
        elapsed, cycle_length = (self.T_cur + 1, self.T_i) if epoch is None else (epoch, self.T_0)
        if self.T_mult == 1:
            elapsed %= cycle_length
        while elapsed >= cycle_length:
            elapsed, cycle_length = elapsed - cycle_length, cycle_length * self.T_mult
        self.T_cur, self.T_i = elapsed, cycle_length
        super()._update_lr(epoch)
        self.last_epoch = math.floor(self.last_epoch)

    def _next_lr(self) -> list[Value]:
        height = half_cosine(self.T_cur, self.T_i)
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]


class CyclicLR(torch_schedulers.CyclicLR, LRScheduler):
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
        base_lrs = values_per_group("base_lr", optimizer, base_lr)
        for name, values in (("base_lr", base_lrs), ("max_lr", max_lr)):
            check_finite_nonnegative(name, values_per_group(name, optimizer, values))
        check_finite_nonnegative("step_size_up", step_size_up)
        check_finite_nonnegative("step_size_down", 0 if step_size_down is None else step_size_down)
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        if mode == "exp_range" and scale_fn is None:
            check_finite_nonnegative("gamma", gamma)
        if cycle_momentum:
            _check_momentum(optimizer, base_momentum=base_momentum, max_momentum=max_momentum)
        if step_size_up == 0 and not step_size_down:
            raise ZeroDivisionError("float division by zero")  # torch's error, but nothing changed
        if last_epoch == -1:
            # torch would fill a tensor that groups share with the rate of the last group.
            set_rates(zip(optimizer.param_groups, base_lrs, strict=True))
        super().__init__(
            optimizer,
            base_lr,
            max_lr,
            step_size_up,
            step_size_down,
            mode,
            gamma,
            scale_fn,
            scale_mode,
            cycle_momentum,
            base_momentum,  # type: ignore[arg-type]  # or a list
            max_momentum,  # type: ignore[arg-type]
            last_epoch,
        )
        # torch has stepped from the groups' initial_lr, which may come from an earlier scheduler.
        self.base_lrs = base_lrs
        self._update_lr(self.last_epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        pair_with_groups(self, self.base_lrs)  # raises an error if groups were added
        super()._update_lr(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes except the optimizer.

        A `scale_fn` that is an object is saved by its attributes; a function is not saved.
        """
        state = LRScheduler.state_dict(self)
        state.pop("_scale_fn_ref", None)
        return {**state, "_scale_fn_custom": attributes_to_save(self._scale_fn_custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict`. `scale_fn` stays that of the constructor."""
        super().load_state_dict(dict(state_dict))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._init_scale_fn()  # earlier versions did not pickle the function


class OneCycleLR(torch_schedulers.OneCycleLR, LRScheduler):
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
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        check_number("div_factor", div_factor, gt=0)
        check_number("final_div_factor", final_div_factor, gt=0)
        check_finite_nonnegative("max_lr", values_per_group("max_lr", optimizer, max_lr))
        if cycle_momentum:
            _check_momentum(optimizer, max_momentum=max_momentum, base_momentum=base_momentum)
        super().__init__(
            optimizer,
            max_lr,
            total_steps,
            epochs,
            steps_per_epoch,
            pct_start,
            anneal_strategy,
            cycle_momentum,
            base_momentum,
            max_momentum,
            div_factor,
            final_div_factor,
            three_phase,
            last_epoch,
        )


class SWALR(torch_swa.SWALR, LRScheduler):
    r"""Anneal the learning rate to the one at which weights are averaged, and keep it there.

    .. math::
        \eta_k = \eta_{swa} + (\eta_0 - \eta_{swa}) \, (1 - a(k / \text{anneal\_epochs}))

    where :math:`a` is a line or half a cosine from 0 to 1, and :math:`k` the steps of this
    scheduler. :math:`\eta_0` is derived from the current rate, so another scheduler may run before.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set. Its groups get a key `swa_lr`.
        swa_lr (float or list): The final rate, for all groups or one for each.
        anneal_epochs (int): Steps until the final rate, at least 0. Default: 10.
        anneal_strategy (str): "cos" or "linear". Default: "cos".
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range, or `swa_lr` does not have one value for each
            group.

    Paper: https://arxiv.org/abs/1803.05407
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        last_epoch: int = -1,
    ) -> None:
        check_finite_nonnegative("swa_lr", values_per_group("swa_lr", optimizer, swa_lr))
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        super().__init__(
            optimizer,
            swa_lr,  # type: ignore[arg-type]
            anneal_epochs,
            anneal_strategy,
            last_epoch,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._set_anneal_func(self._anneal_strategy)  # earlier versions did not pickle the function


def _check_momentum(optimizer: Optimizer, **bounds: float | list[float]) -> None:
    """Raise a ValueError if an optimizer has no momentum to cycle, or for bounds out of range."""
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError(
            "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
        )
    for name, values in bounds.items():
        check_finite_nonnegative(name, values_per_group(name, optimizer, values))

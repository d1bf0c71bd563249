"""Reduce the learning rate when a metric, passed to `step`, no longer improves."""

import math
import warnings
from typing import Any, Literal, SupportsFloat

import torch.optim.lr_scheduler as torch_schedulers
from torch.optim import Optimizer

from optgen.optim.lr_scheduler.argument_checks import check_counts, check_number
from optgen.optim.lr_scheduler.base import EPOCH_DEPRECATION_WARNING, LRScheduler
from optgen.optim.lr_scheduler.group_rates import check_optimizer, copy_group_values, set_rates
from optgen.runtime.torch_private import outside_dynamo


class ReduceLROnPlateau(LRScheduler, torch_schedulers.ReduceLROnPlateau):
    r"""Reduce the learning rate when a metric has stopped improving.

    .. math::
        \eta \leftarrow \max(\eta \cdot \text{factor}, \eta_{\min})

    after more than `patience` steps in a row in which the metric was not better than the best.
    Frameworks look for torch's class to hand over the metric, so this class is derived from it.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        mode (str): "min" if less is better, "max" if more is. Default: "min".
        factor (float): Factor of a reduction, below 1. Default: 0.1.
        patience (int): The most steps in a row that may bring no improvement. Default: 10.
        threshold (float): By how much a metric must be better than the best. Default: 1e-4.
        threshold_mode (str): "rel" for a fraction of the best, "abs" for a difference. Default:
            "rel".
        cooldown (int): Steps after a reduction that `patience` ignores. Default: 0.
        min_lr (float or list): The least rate, for all groups or one for each. Default: 0.
        eps (float): A reduction by at most this much is skipped. Default: 1e-8.

    Raises:
        ValueError: `factor`, `mode` or `threshold_mode` is outside its range, or `min_lr` does not
            have one value for each group.
        TypeError: `optimizer` is not an Optimizer.
        RuntimeError: In `step`: groups were added, and `min_lr` was a list.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: list[float] | float = 0,
        eps: float = 1e-8,
    ) -> None:
        check_number("factor", factor, ge=0)
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        check_counts((("patience", patience), ("cooldown", cooldown)))
        check_number("threshold", threshold)
        check_number("eps", eps, ge=0)
        self.factor = factor
        check_optimizer(optimizer)
        self.optimizer = optimizer
        group_count = len(optimizer.param_groups)
        if isinstance(min_lr, (list, tuple)):
            if len(min_lr) != group_count:
                raise ValueError(f"expected {group_count} min_lrs, got {len(min_lr)}")
            self.default_min_lr = None
            self.min_lrs = list(min_lr)
        else:
            self.default_min_lr = min_lr
            self.min_lrs = [min_lr] * group_count
        self.patience = patience
        self.cooldown = cooldown
        self.eps = eps
        self.last_epoch = 0
        self._last_lr = copy_group_values(optimizer, "lr")
        self._init_is_better(mode, threshold, threshold_mode)
        self._reset()

    def _init_is_better(self, mode: Any, threshold: float, threshold_mode: Any) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.mode = mode
        self.threshold = threshold
        self.threshold_mode = threshold_mode

    def _reset(self) -> None:
        """Forget the best metric and all counts."""
        self.best: float = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @outside_dynamo
    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Record a metric, and reduce the rates if it has not improved for too long.

        Args:
            metrics (float or Tensor): The metric that should improve.
            epoch (int, optional): Deprecated: the number of the step.
        """
        metric = float(metrics)
        if epoch is None:
            epoch = self.last_epoch + 1
        else:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=2)
        self.last_epoch = epoch
        if self._is_better(metric, self.best):
            self.best = metric
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr(epoch)
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = copy_group_values(self.optimizer, "lr")

    def _reduce_lr(self, epoch: int) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"The number of param groups in the `optimizer` ({len(groups)}) differs "
                    f"from when `ReduceLROnPlateau` was initialized ({len(self.min_lrs)}), usually "
                    "due to a new param group being added to the optimizer. Please modify the "
                    "`min_lrs` field to match the length of the `optimizer` param groups."
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        rates = copy_group_values(self.optimizer, "lr")
        for index, min_lr in enumerate(self.min_lrs):
            old = float(rates[index])
            new = max(old * self.factor, min_lr)
            if old - new > self.eps:
                rates[index] = new
        set_rates(zip(groups, rates, strict=True))

    @property
    def in_cooldown(self) -> bool:
        """Tell whether the last reduction was less than `cooldown` steps ago."""
        return self.cooldown_counter > 0

    def _is_better(self, metric: float, best: float) -> bool:
        sign = -1.0 if self.mode == "min" else 1.0
        if self.threshold_mode == "rel":
            bound: float = best * (1.0 + sign * self.threshold)
        else:
            bound = best + sign * self.threshold
        return metric < bound if self.mode == "min" else metric > bound

"""Reduce the learning rate when a metric, passed to `step`, no longer improves."""

import warnings
from typing import Literal, SupportsFloat

import torch.optim.lr_scheduler as torch_schedulers
from torch.optim import Optimizer

from optgen.optim.lr_scheduler.base import (
    EPOCH_DEPRECATION_WARNING,
    LRScheduler,
    check_counts,
    check_number,
    copy_group_values,
    set_rates,
)
from optgen.runtime.torch_private import outside_dynamo


class ReduceLROnPlateau(torch_schedulers.ReduceLROnPlateau, LRScheduler):
    r"""Reduce the learning rate when a metric has stopped improving.

    .. math::
        \eta \leftarrow \max(\eta \cdot \text{factor}, \eta_{\min})

    after more than `patience` steps in a row in which the metric was not better than the best.
    Frameworks look for torch's class to hand over the metric. So this class derives from it, and
    has its counts; the rates of groups are set as our other schedulers set them.

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
        check_counts((("patience", patience), ("cooldown", cooldown)))
        check_number("threshold", threshold)
        check_number("eps", eps, ge=0)
        for name, choice, choices in (
            ("mode", mode, ("min", "max")),
            ("threshold mode", threshold_mode, ("rel", "abs")),
        ):
            if choice not in choices:
                raise ValueError(f"{name} {choice} is unknown!")
        super().__init__(
            optimizer,
            mode,
            factor,
            patience,
            threshold,
            threshold_mode,
            cooldown,
            min_lr,
            eps,
        )

    @outside_dynamo
    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Record a metric, and reduce the rates if it has not improved for too long.

        Args:
            metrics (float or Tensor): The metric that should improve.
            epoch (int, optional): Deprecated: the number of the step.
        """
        metric = float(metrics)
        if epoch is not None:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=2)
            self.last_epoch = epoch - 1  # torch's method would warn of its caller, which is here
        super().step(metric)

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

"""Anneal the learning rate from its current value to that of stochastic weight averaging."""

import math
from typing import Literal

from torch.optim import Optimizer

from optgen.optim.lr_scheduler.argument_checks import check_finite_nonnegative
from optgen.optim.lr_scheduler.base import LRScheduler
from optgen.optim.lr_scheduler.group_rates import Value, values_per_group


class SWALR(LRScheduler):
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
        rates = values_per_group("swa_lr", optimizer, swa_lr)
        check_finite_nonnegative("swa_lr", rates)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._anneal_strategy = anneal_strategy
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self.anneal_epochs = anneal_epochs
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        super().__init__(optimizer, last_epoch)

    def anneal_func(self, t: float) -> float:
        """Return how much of the annealing is done at a fraction t of its steps: 0 to 1."""
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def _annealed_fraction(self, step: int) -> float:
        """Return how much of the annealing is done at a step: 0 to 1."""
        return self.anneal_func(max(0, min(1, step / max(1, self.anneal_epochs))))

    def _next_lr(self) -> list[Value]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._annealed_fraction(step - 1), self._annealed_fraction(step)
        rates = []
        for group in self.optimizer.param_groups:
            end = start = group["swa_lr"]
            if before < 1:  # the initial rate, derived from the current one
                start = (group["lr"] - before * end) / (1 - before)
            rates.append(end * now + start * (1 - now))
        return rates

"""Cosine annealing, once or with warm restarts."""

import math
from typing import Any

from torch.optim import Optimizer

from optgen.optim.lr_scheduler.argument_checks import check_finite_nonnegative, check_number
from optgen.optim.lr_scheduler.base import LRScheduler
from optgen.optim.lr_scheduler.group_rates import Value
from optgen.optim.lr_scheduler.shaped import ShapedLR
from optgen.runtime.torch_private import outside_dynamo


def half_cosine(step: float, end_step: float) -> float:
    """Return a number that falls along half a cosine, from 1 at step 0 to 0 at `end_step`."""
    return (1 + math.cos(math.pi * step / end_step)) / 2


class CosineAnnealingLR(ShapedLR):
    r"""Anneal the learning rate along half a cosine, and back up along the next half.

    .. math::
        \eta_t = \eta_{\min} + (\eta_0 - \eta_{\min}) \, \frac{1 + \cos(\pi t / T_{\max})}{2}

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        T_max (int): Steps until the rate is `eta_min`.
        eta_min (float): The least rate, at least 0. Default: 0.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.

    Paper: https://arxiv.org/abs/1608.03983
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        check_number("T_max", T_max)
        check_finite_nonnegative("eta_min", eta_min)
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    @property
    def floor(self) -> float:
        """The lowest rate."""
        return self.eta_min

    def shape(self, epoch: int) -> float:
        """Return the height of the cosine, between 0 and 1."""
        return half_cosine(epoch, self.T_max) if epoch else 1.0  # T_max may be 0

    def _share_above_floor(self, epoch: int) -> float:
        # This is torch's formula for s(t) where s(t - 1) is 0. `shape` differs from it in the last
        # digits, and later steps would multiply the difference.
        return (1 - math.cos(math.pi / self.T_max)) / 2


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

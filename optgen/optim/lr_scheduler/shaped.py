"""Define ShapedLR, the base of schedules that are a pure function of the step."""

from typing import Any

from optgen.optim.lr_scheduler.base import LRScheduler
from optgen.optim.lr_scheduler.group_rates import Value, copy_group_values, pair_with_groups


class ShapedLR(LRScheduler):
    r"""Base of schedules whose distance to a floor follows a shape, a pure function of the step.

    .. math::
        \eta_t = \eta_{\min} + (\eta_0 - \eta_{\min}) \, s(t)

    A subclass only has to define `shape`. A step does not assign :math:`\eta_t`. It multiplies the
    current rate's distance to the floor by :math:`s(t) / s(t - 1)`. So the effects of several
    schedulers of one optimizer multiply, and a change by hand persists. Where :math:`s(t - 1)` is
    0, the step adds :math:`(\eta_0 - \eta_{\min}) \, s(t)` instead.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.
    """

    @property
    def floor(self) -> float:
        """The rate where the shape is 0."""
        return 0.0

    def shape(self, epoch: int) -> float:
        """Return s(t): 1 at the base rate, 0 at the floor."""
        raise NotImplementedError

    def ratio(self, epoch: int) -> float | None:
        """Return s(t) / s(t - 1), or s(t) at the first step; None if s(t - 1) is 0."""
        before, now = self.shape(epoch - 1) if epoch > 0 else 1.0, self.shape(epoch)
        if before == now:
            return 1.0
        return now / before if before else None

    def _next_lr(self) -> list[Value]:
        # After a resume, the groups already hold the rate of this step.
        is_resumed = self._is_initial and self.last_epoch > 0
        floor, ratio = self.floor, 1.0 if is_resumed else self.ratio(self.last_epoch)
        if ratio == 1:
            return copy_group_values(self.optimizer, "lr")
        if ratio is not None:
            return [ratio * (group["lr"] - floor) + floor for group in self.optimizer.param_groups]
        share = self._share_above_floor(self.last_epoch)
        pairs = pair_with_groups(self, self.base_lrs)
        return [group["lr"] + (base - floor) * share for group, base in pairs]

    def _share_above_floor(self, epoch: int) -> float:
        """Return s(t) for a step that begins at the floor, where s(t - 1) is 0."""
        return self.shape(epoch)

    def _get_closed_form_lr(self) -> list[Any]:
        """Compute the rate of each group at `last_epoch` from its base rate alone."""
        share = self.shape(self.last_epoch)
        return [self.floor + (base - self.floor) * share for base in self.base_lrs]

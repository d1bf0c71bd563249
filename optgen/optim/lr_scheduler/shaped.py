"""Schedules that are a pure function of the step: ShapedLR, their base, and all of its classes.

Cosine annealing, decays by a factor at certain steps, ramps, and warm up with a stable phase and a
decay, which can be prolonged until the decay begins.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from torch.optim import Optimizer

from optgen.optim.lr_scheduler.base import (
    LRScheduler,
    Value,
    check_finite_nonnegative,
    check_number,
    copy_group_values,
    pair_with_groups,
)


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


class _DecayLR(ShapedLR):
    gamma: float

    def _count_decays(self, epoch: int) -> int:
        """Count the decays up to a step."""
        raise NotImplementedError

    def shape(self, epoch: int) -> float:
        """Return gamma to the power of the number of decays up to a step."""
        return self.gamma ** self._count_decays(epoch)

    def ratio(self, epoch: int) -> float:
        """Return s(t) / s(t - 1): gamma to the power of the number of decays in this step.

        It is computed without `shape`, which may underflow to 0.
        """
        before = self._count_decays(epoch - 1) if epoch > 0 else 0
        return self.gamma ** (self._count_decays(epoch) - before)


class StepLR(_DecayLR):
    r"""Decay the learning rate by gamma every `step_size` steps.

    .. math::
        \eta_t = \eta_0 \, \gamma^{\lfloor t / \text{step\_size} \rfloor}

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        step_size (int): Steps between two decays. With 0, a step raises an error.
        gamma (float): Factor of a decay, at least 0. Default: 0.1.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        check_number("step_size", step_size, ge=0)
        check_finite_nonnegative("gamma", gamma)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _count_decays(self, epoch: int) -> int:
        return epoch // self.step_size if epoch else 0


class MultiStepLR(_DecayLR):
    r"""Decay the learning rate by gamma at each milestone.

    .. math::
        \eta_t = \eta_0 \, \gamma^{|\{m \in \text{milestones} : m \le t\}|}

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        milestones (iterable of int): The steps of the decays. A milestone that is listed
            twice is two decays. A milestone that is negative or not a whole number has no effect,
            except that `step(epoch)` includes all milestones up to the epoch.
        gamma (float): Factor of a decay, at least 0. Default: 0.1.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        check_finite_nonnegative("gamma", gamma)
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def ratio(self, epoch: int) -> float:
        """Return gamma to the power of the number of milestones at this step."""
        return self.gamma ** self.milestones[epoch]

    def _count_decays(self, epoch: int) -> int:
        return bisect_right(sorted(self.milestones.elements()), epoch)


class ExponentialLR(_DecayLR):
    r"""Decay the learning rate by gamma in each step.

    .. math::
        \eta_t = \eta_0 \, \gamma^t

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        gamma (float): Factor of a decay, at least 0.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        check_finite_nonnegative("gamma", gamma)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _count_decays(self, epoch: int) -> int:
        return epoch


class ConstantLR(ShapedLR):
    r"""Multiply the learning rate by a factor for the first steps.

    .. math::
        \eta_t = \eta_0 \cdot (\text{factor} \text{ if } t < \text{total\_iters} \text{ else } 1)

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        factor (float): The factor, in [0, 1]. Default: 1/3.
        total_iters (int): The number of steps with the factor. Default: 5.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1.0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        check_number("total_iters", total_iters, ge=0)
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def shape(self, epoch: int) -> float:
        """Return the factor; from step `total_iters` on, return 1."""
        return self.factor if epoch < self.total_iters else 1.0


class LinearLR(ShapedLR):
    r"""Multiply the learning rate by a factor that changes linearly from a start to an end value.

    .. math::
        \eta_t = \eta_0 \left(f_0 + (f_1 - f_0) \min(1, t / \text{total\_iters})\right)

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        start_factor (float): :math:`f_0`, in (0, 1]. Default: 1/3.
        end_factor (float): :math:`f_1`, in [0, 1]. Default: 1.
        total_iters (int): Steps from :math:`f_0` to :math:`f_1`. With 0, all steps have
            :math:`f_1`. Default: 5.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1.0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 "
                "and less or equal to 1."
            )
        if not 0 <= end_factor <= 1.0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        check_number("total_iters", total_iters, ge=0)
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def shape(self, epoch: int) -> float:
        """Return the factor on the line; from step `total_iters` on, return its end value."""
        if epoch >= self.total_iters:
            return self.end_factor
        return self.start_factor + (self.end_factor - self.start_factor) * epoch / self.total_iters


class PolynomialLR(ShapedLR):
    r"""Decay the learning rate to 0 by a power of the remaining fraction.

    .. math::
        \eta_t = \eta_0 \left(1 - \min(1, t / \text{total\_iters})\right)^\text{power}

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        total_iters (int): Steps until the rate is 0; if 0, the rate is constant. Default: 5.
        power (float): The power, at least 0. Default: 1.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.
    """

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        check_number("total_iters", total_iters, ge=0)
        check_number("power", power, ge=0)
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def shape(self, epoch: int) -> float:
        """Return the power of the fraction of steps that remains."""
        if self.total_iters == 0:
            return 1.0
        remaining = 1.0 - min(self.total_iters, epoch) / self.total_iters
        return float(remaining**self.power)


class WarmupStableDecayLR(ShapedLR):
    r"""Warm up the learning rate linearly, keep it, and decay it at the end.

    With :math:`W, S, D` the steps of the three phases and :math:`u = (t - W - S) / D`,

    .. math::
        \eta_t = \eta_0 \cdot \begin{cases}
            (t + 1) / (W + 1) & t < W \\
            1 & W \le t < W + S \\
            m + (1 - m) \, d(\min(1, u)) & W + S \le t
        \end{cases}

    and :math:`d(u)` is :math:`1 - u` (linear), :math:`1 - \sqrt{u}` (sqrt) or
    :math:`(1 + \cos \pi u) / 2` (cosine). No step before the end has a rate of 0. Until the decay
    begins, training can be prolonged by increasing `scheduler.stable_steps`.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        warmup_steps (int): Steps until the base rate, at least 0.
        stable_steps (int): Steps at the base rate, at least 0.
        decay_steps (int): Steps from the base rate to the lowest, at least 0.
        decay_type (str): "linear", "sqrt" or "cosine". Default: "linear".
        min_lr_factor (float): :math:`m`, the lowest rate as a share of the base rate, in [0, 1].
            Default: 0.
        last_epoch (int): -1 to begin, else the last step that was taken. Default: -1.

    Raises:
        ValueError: An argument is outside its range.

    Papers: https://arxiv.org/abs/2404.06395, https://arxiv.org/abs/2405.18392
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        stable_steps: int,
        decay_steps: int,
        decay_type: Literal["linear", "sqrt", "cosine"] = "linear",
        min_lr_factor: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        steps = {
            "warmup_steps": warmup_steps,
            "stable_steps": stable_steps,
            "decay_steps": decay_steps,
        }
        for name, value in steps.items():
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"Expected non-negative integer {name}, but got {value}")
        if decay_type not in ("linear", "sqrt", "cosine"):
            raise ValueError(
                f"decay_type must be one of 'linear', 'sqrt' or 'cosine', instead got {decay_type}"
            )
        if not 0 <= min_lr_factor <= 1:
            raise ValueError(f"Expected min_lr_factor between 0 and 1, but got {min_lr_factor}")
        self.warmup_steps = warmup_steps
        self.stable_steps = stable_steps
        self.decay_steps = decay_steps
        self.decay_type = decay_type
        self.min_lr_factor = min_lr_factor
        super().__init__(optimizer, last_epoch)

    def shape(self, epoch: int) -> float:
        """Return the rate at a step, divided by the base rate."""
        if epoch < self.warmup_steps:
            return (epoch + 1) / (self.warmup_steps + 1)
        decay_step = epoch - self.warmup_steps - self.stable_steps
        if decay_step < 0:
            return 1.0
        if decay_step >= self.decay_steps:
            return self.min_lr_factor
        u = decay_step / self.decay_steps
        cosine = half_cosine(u, end_step=1)
        decay_shapes = {"linear": 1 - u, "sqrt": 1 - math.sqrt(u), "cosine": cosine}
        return self.min_lr_factor + (1 - self.min_lr_factor) * decay_shapes[self.decay_type]

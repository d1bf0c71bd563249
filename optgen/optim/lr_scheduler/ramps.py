"""Scale the rate by a constant, a line or a power over `total_iters` steps."""

from torch.optim import Optimizer

from optgen.optim.lr_scheduler.argument_checks import check_number
from optgen.optim.lr_scheduler.shaped import ShapedLR


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

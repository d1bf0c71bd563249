"""Decay the learning rate by a factor, at certain steps."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from torch.optim import Optimizer

from optgen.optim.lr_scheduler.argument_checks import check_finite_nonnegative, check_number
from optgen.optim.lr_scheduler.shaped import ShapedLR


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

"""Warm up, keep the rate, decay: a schedule that can be prolonged until the decay begins."""

import math
from typing import Literal

from torch.optim import Optimizer

from optgen.optim.lr_scheduler.cosine import half_cosine
from optgen.optim.lr_scheduler.shaped import ShapedLR


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

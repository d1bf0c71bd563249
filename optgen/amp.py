"""Automatic mixed precision: a gradient scaler that reads gradients no more often than needed."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from optgen.runtime import GeneratedOptimizer
from optgen.runtime.batch.grad_scaler import can_share, shared_check

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """torch's gradient scaler, without its own check if the optimizer's step checks gradients.

    torch's scaler reads all gradients to find out if one is not finite. The step of an optimizer
    that is composed with `modifiers.skip_nonfinite` finds that out too. This scaler leaves the
    check and the unscaling to such a step. Everything else is as in torch: the arguments, the
    methods, the checkpoint, and the steps of all other optimizers.
    """

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale gradients, and take the step unless one of them is not finite.

        As in torch, gradients are not unscaled again after you have called `unscale_`.
        """
        if args or "closure" in kwargs or not self._step_can_check(optimizer):
            return super().step(optimizer, *args, **kwargs)
        scale = self._scale
        assert scale is not None
        with shared_check(optimizer, scale) as report:
            result: float | None = optimizer.step(**kwargs)
        found_inf = torch.full((), float(report.skipped), dtype=torch.float32, device=scale.device)
        state = self._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = {scale.device: found_inf}
        state["stage"] = OptState.STEPPED
        return result

    def _step_can_check(self, optimizer: Optimizer) -> bool:
        """Tell whether the check can be left to the step of an optimizer."""
        if not self._enabled or not isinstance(optimizer, GeneratedOptimizer):
            return False
        scale = self._scale
        if scale is None or not scale.is_cpu:  # a read of the scale would wait for the device
            return False
        if self._per_optimizer_states[id(optimizer)]["stage"] is not OptState.READY:
            return False
        # Below 1, the scale can turn a finite gradient into an infinite one. That is no overflow of
        # the backward pass, so torch's scaler does not lower its scale for it.
        divisor = float(scale * getattr(optimizer, "grad_scale", 1.0))
        return divisor >= 1 and can_share(optimizer)

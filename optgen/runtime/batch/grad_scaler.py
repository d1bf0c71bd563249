"""Do a gradient scaler's work inside a step: skip it after an overflow, unscale gradients."""

from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch


def is_skipped(optimizer: Any) -> bool:
    """Tell whether a gradient scaler found infinities, so that the step must be skipped."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def must_unscale(optimizer: Any) -> bool:
    """Tell whether a gradient scaler left the unscaling to the step, which unscales in place."""
    return getattr(optimizer, "grad_scale", None) is not None


def unscale(optimizer: Any, batch: Batch) -> None:
    """Divide the gradients by the loss scale in place, if the step must unscale them."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        for grad in batch.grads:
            grad.div_(scale)


def scaler_tensors_on(device: torch.device, optimizer: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return a gradient scaler's loss scale and overflow flag on a device; None for a missing one.

    A tensor that is on another device is copied. The results are new objects, so whoever compares
    them with those of the last step notices other memory.
    """
    scale, found_inf = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
    return _to_device(scale, device), _to_device(found_inf, device)


def _to_device(value: Tensor | None, device: torch.device) -> Tensor | None:
    return None if value is None else value.detach().to(device, non_blocking=True)

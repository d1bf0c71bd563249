"""Do a gradient scaler's work inside a step: skip it after an overflow, unscale gradients.

A rule with a `skip_count` checks all gradients, and counts the steps that it skips. A gradient
scaler can ask the rule whether a step was skipped, instead of checking the gradients too. To the
scaler, a skipped step never happened. So such a step changes neither the step count nor the skip
count.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.batch.batch import Batch
from optgen.runtime.batch.step_context import OptimizerWithContext, SkipReport
from optgen.runtime.rule import OptimizerLike


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


def can_share(optimizer: OptimizerLike) -> bool:
    """Tell whether the next step can report to a gradient scaler if a gradient is not finite."""
    if not optimizer.rule.skip_count or _first_with_gradient(optimizer) is None:
        return False
    modes = ("capturable", "differentiable")  # a step in these modes is not undone
    return not any(group.get(mode) for group in optimizer.param_groups for mode in modes)


@contextmanager
def shared_check(optimizer: Any, scale: Tensor) -> Iterator[SkipReport]:
    """Have the steps in this context divide gradients by a scale, and report if they are skipped.

    A skipped step changes nothing, and is not counted. `can_share` must be true.
    """
    outer_scale = getattr(optimizer, "grad_scale", None)
    report = optimizer._context.skip_report = SkipReport()
    optimizer.grad_scale = scale if outer_scale is None else scale * outer_scale
    try:
        yield report
    finally:
        del optimizer.grad_scale
        optimizer._context.skip_report = None


@contextmanager
def report_skip(optimizer: OptimizerWithContext, report: SkipReport) -> Iterator[None]:
    """Report whether the rule skips the step in this context; if so, undo what the step counted."""
    first = _first_with_gradient(optimizer)
    skips_before = _skip_count(optimizer, first)
    yield
    if first is not None and _skip_count(optimizer, first) != skips_before:
        report.skipped = True
        _undo_counts(optimizer)


def _first_with_gradient(optimizer: OptimizerLike) -> Tensor | None:
    """Return the first parameter that takes part in the next step."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    return next((param for param in params if param.grad is not None), None)


def _skip_count(optimizer: OptimizerLike, param: Tensor | None) -> float:
    """Return how many steps of a parameter were skipped."""
    states = optimizer.state.get(param, {}) if param is not None else {}
    return float(states.get(optimizer.rule.skip_count, 0.0))


@torch.no_grad()
def _undo_counts(optimizer: OptimizerLike) -> None:
    """Subtract 1 from step and skip counts of all parameters that took part in the last step."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                for key in ("step", optimizer.rule.skip_count):
                    optimizer.state[param][key].sub_(1)

"""Warn if a scheduler steps before its optimizer: the optimizer would not use the first rate.

Our optimizers record their steps themselves. Their `step` has the attribute by which torch's
schedulers recognize a recorded step, so no scheduler wraps it. For any other optimizer, our
schedulers wrap `step`, as torch's do.
"""

import functools
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

RECORDED_MARK = "_wrapped_by_lr_sched"
"""Attribute of a `step` method that records its calls."""
GUIDE = "https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"
STEP_OVERRIDDEN_WARNING = (
    "Seems like `optimizer.step()` has been overridden after learning rate scheduler "
    "initialization. Please, make sure to call `optimizer.step()` before "
    f"`lr_scheduler.step()`. See more details at {GUIDE}"
)
SCHEDULER_TOO_EARLY_WARNING = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. "
    "In PyTorch 1.1.0 and later, you should call them in the opposite order: "
    "`optimizer.step()` before `lr_scheduler.step()`.  Failure to do this "
    "will result in PyTorch skipping the first value of the learning rate schedule. "
    f"See more details at {GUIDE}"
)


def watch(optimizer: Any) -> None:
    """Make an optimizer record that it has taken a step, in `_opt_called`."""
    if hasattr(optimizer.step, RECORDED_MARK):
        return
    reference = weakref.ref(optimizer)
    method: Any = getattr(optimizer.step, "__func__", None)
    function: Any = None if method else optimizer.step  # a function on the instance, not a method

    @functools.wraps(method or optimizer.step)
    def step(*args: Any, **kwargs: Any) -> Any:
        referenced: Any = reference()
        referenced._opt_called = True
        return method(referenced, *args, **kwargs) if method else function(*args, **kwargs)

    setattr(step, RECORDED_MARK, True)
    optimizer.step = step


def check(optimizer: Optimizer, stacklevel: int) -> None:
    """Warn, in a scheduler's first step, if the optimizer has not recorded a step."""
    if not hasattr(optimizer.step, RECORDED_MARK):
        warnings.warn(STEP_OVERRIDDEN_WARNING, UserWarning, stacklevel=stacklevel + 1)
    elif not getattr(optimizer, "_opt_called", False) and not _has_nonfinite_gradient(optimizer):
        warnings.warn(SCHEDULER_TOO_EARLY_WARNING, UserWarning, stacklevel=stacklevel + 1)


@contextmanager
def suppressed_warning(optimizer: Any) -> Iterator[None]:
    """Suppress the warning inside the context, for scheduler steps without training steps."""
    had_stepped = getattr(optimizer, "_opt_called", False)
    optimizer._opt_called = True
    try:
        yield
    finally:
        optimizer._opt_called = had_stepped


def _has_nonfinite_gradient(optimizer: Optimizer) -> bool:
    """Tell whether a gradient is not finite, so that a GradScaler skipped the step."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is not None:
                values = grad._values() if grad.is_sparse else grad
                if not torch.isfinite(values).all():
                    return True
    return False

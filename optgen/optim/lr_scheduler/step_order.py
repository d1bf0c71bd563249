"""Notice a scheduler that steps before its optimizer ever has: it would skip its first rate.

An optimizer of ours notes its steps itself, and its `step` says so by the attribute that torch's
schedulers look for, so that they leave it alone as well. Another's `step` is replaced, as by torch.
"""

import functools
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

NOTED = "_wrapped_by_lr_sched"
GUIDE = "https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"
OVERRIDDEN = (
    "Seems like `optimizer.step()` has been overridden after learning rate scheduler "
    "initialization. Please, make sure to call `optimizer.step()` before "
    f"`lr_scheduler.step()`. See more details at {GUIDE}"
)
TOO_EARLY = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`. "
    "In PyTorch 1.1.0 and later, you should call them in the opposite order: "
    "`optimizer.step()` before `lr_scheduler.step()`.  Failure to do this "
    "will result in PyTorch skipping the first value of the learning rate schedule. "
    f"See more details at {GUIDE}"
)


def watch(optimizer: Any) -> None:
    """Have an optimizer note that it takes steps, in `_opt_called`, unless it does already."""
    if hasattr(optimizer.step, NOTED):
        return
    reference = weakref.ref(optimizer)
    method: Any = getattr(optimizer.step, "__func__", None)
    function: Any = None if method else optimizer.step  # that someone has put in its place

    @functools.wraps(method or optimizer.step)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer: Any = reference()
        optimizer._opt_called = True
        return method(optimizer, *args, **kwargs) if method else function(*args, **kwargs)

    setattr(step, NOTED, True)
    optimizer.step = step


def check(optimizer: Optimizer, stacklevel: int) -> None:
    """Warn, in a scheduler's first step, if the optimizer is not known to have taken one."""
    if not hasattr(optimizer.step, NOTED):
        warnings.warn(OVERRIDDEN, UserWarning, stacklevel=stacklevel + 1)
    elif not getattr(optimizer, "_opt_called", False) and not _overflowed(optimizer):
        warnings.warn(TOO_EARLY, UserWarning, stacklevel=stacklevel + 1)


@contextmanager
def in_order(optimizer: Any) -> Iterator[None]:
    """Let schedulers step here without a word: it is no training that they follow."""
    before = getattr(optimizer, "_opt_called", False)
    optimizer._opt_called = True
    try:
        yield
    finally:
        optimizer._opt_called = before


def _overflowed(optimizer: Optimizer) -> bool:
    """Tell whether a gradient is not finite: then a GradScaler has skipped the optimizer's step."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is not None:
                values = grad._values() if grad.is_sparse else grad
                if not torch.isfinite(values).all():
                    return True
    return False

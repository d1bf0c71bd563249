"""LRScheduler, the base of all schedulers, and what every scheduler needs.

That is: the rates of groups, numbers or tensors that are changed in place; a warning if a scheduler
steps before its optimizer, which then would not use the first rate; and checks of arguments.

Our optimizers record their steps themselves. Their `step` has the attribute by which torch's
schedulers recognize a recorded step, so no scheduler wraps it. For any other optimizer, our
schedulers wrap `step`, as torch's do.
"""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

import torch
import torch.optim.lr_scheduler as torch_schedulers
from torch import Tensor
from torch.optim import Optimizer

from optgen.runtime.torch_private import outside_dynamo

T = TypeVar("T")

EPOCH_DEPRECATION_WARNING: str = torch_schedulers.EPOCH_DEPRECATION_WARNING
INITIAL_LR_MISSING = (
    "param 'initial_lr' is not specified in param_groups[{}] when resuming scheduler with "
    "last_epoch >= 0.\n"
    "This typically happens when:\n"
    "1. You're trying to resume training from a checkpoint but haven't properly loaded the "
    "optimizer state\n"
    "2. You're using last_epoch >= 0 for a fresh training run (not recommended)"
)


class LRScheduler(torch_schedulers.LRScheduler):
    """Base of schedulers: sets the learning rates of an optimizer's groups in each `step`.

    A subclass defines `get_lr`, which returns the rate of each group at `last_epoch`, computed from
    `base_lrs` or from the rates in `optimizer.param_groups`. If the rate is a function of the step
    alone, derive from `ShapedLR`.

    The constructor changes the rates. To resume, make optimizer and scheduler, then load the
    state of both.

    Args:
        optimizer (Optimizer): The optimizer. Its groups get a key `initial_lr`.
        last_epoch (int): -1 to begin; otherwise the last step that was taken, and then the groups
            must hold `initial_lr` and the current rate. Default: -1.

    Raises:
        TypeError: `optimizer` is not an Optimizer.
        KeyError: A group has no `initial_lr`, and `last_epoch` is not -1.
    """

    optimizer: Optimizer
    base_lrs: list[Any]
    last_epoch: int
    _step_count: int
    _last_lr: list[Any]
    _is_initial = False
    _get_lr_called_within_step = False
    _unsaved_attributes: ClassVar[tuple[str, ...]] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", copy_value(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(INITIAL_LR_MISSING.format(index))
        self.base_lrs = copy_group_values(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        record_steps(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        """Take the first step, which the constructor takes before any training."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    @outside_dynamo
    def step(self, epoch: int | None = None) -> None:
        """Advance by one step. Call it after the optimizer's step.

        Args:
            epoch (int, optional): Deprecated: the step to go to, in closed form if there is one.
        """
        if self._step_count == 1:
            check_step_order(self.optimizer, stacklevel=2)
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=2)
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        """Go to a step, by default the next one, and set its rates."""
        compute_rates = self.get_lr
        if epoch is not None:
            compute_rates = getattr(self, "_get_closed_form_lr", self.get_lr)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._get_lr_called_within_step = True
        try:
            rates = compute_rates()
        finally:
            self._get_lr_called_within_step = False
        set_rates(pair_with_groups(self, rates))
        self._last_lr = copy_group_values(self.optimizer, "lr")

    def get_lr(self) -> list[Any]:
        """Compute the rate of each group at `last_epoch`, for `step`; see `get_last_lr`."""
        rates = self._next_lr()
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, "
                "please use `get_last_lr()`.",
                UserWarning,
                stacklevel=2,
            )
        return rates

    def _next_lr(self) -> list[Value]:
        raise NotImplementedError

    @outside_dynamo
    def get_last_lr(self) -> list[Any]:
        """Return the rate of each group since the last step; tensors are copies."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes except the optimizer, whose state must be saved separately."""
        return {
            key: value for key, value in vars(self).items() if key not in self._unsaved_attributes
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict` of this class, or of torch's class of the same name."""
        vars(self).update(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_step_count" in state:
            # A copied optimizer has the unwrapped step of its class.
            record_steps(self.optimizer)


class _LRScheduler(LRScheduler, torch_schedulers._LRScheduler):
    """The name that LRScheduler had before torch 2.0."""


Value = float | Tensor


class HasOptimizer(Protocol):
    """A scheduler, as far as this file knows it."""

    optimizer: Optimizer


def check_optimizer(optimizer: object) -> None:
    """Raise a TypeError if an object is not an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def copy_value(value: Any) -> Any:
    """Return a copy of a tensor, or the value itself if it is no tensor."""
    return value.clone() if isinstance(value, Tensor) else value


def copy_group_values(optimizer: Optimizer, key: str) -> list[Any]:
    """Return copies of the values that the groups hold under a key."""
    return [copy_value(group[key]) for group in optimizer.param_groups]


def set_rates(rates: Iterable[tuple[dict[str, Any], Value]], key: str = "lr") -> None:
    """Set the rates of groups: replace a number, and fill a tensor in place.

    All groups share one tensor if the optimizer was given one tensor for all. If their rates now
    differ, a group whose rate is not that of the first group gets a tensor of its own.
    """
    rate_by_tensor: dict[int, Value] = {}
    for group, value in rates:
        lr = group.get(key)
        if not isinstance(lr, Tensor):
            group[key] = copy_value(value)
            continue
        if id(lr) in rate_by_tensor and bool(rate_by_tensor[id(lr)] != value):
            lr = group[key] = lr.clone()
        rate_by_tensor[id(lr)] = value
        lr.fill_(value.squeeze() if isinstance(value, Tensor) else value)


def values_per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """Return one value for each group, from one value for all or a list of one for each."""
    group_count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        value = [value] * group_count
    elif len(value) != group_count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. "
            f"{name} has {len(value)} values, param_groups has {group_count}."
        )
    return list(map(copy_value, value))


def pair_with_groups(
    scheduler: HasOptimizer, values: Sequence[T]
) -> Iterator[tuple[dict[str, Any], T]]:
    """Return pairs of a group of a scheduler's optimizer and its value.

    Raises:
        ValueError: the optimizer has more or fewer groups than there are values.
    """
    groups = scheduler.optimizer.param_groups
    if len(groups) != len(values):
        raise ValueError(
            f"{type(scheduler).__name__} was made for {len(values)} param groups, and its "
            f"optimizer has {len(groups)} now: make a new scheduler after `add_param_group`"
        )
    return zip(groups, values, strict=True)


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


def record_steps(optimizer: Any) -> None:
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


def check_step_order(optimizer: Optimizer, stacklevel: int) -> None:
    """Warn, in a scheduler's first step, if the optimizer has not recorded a step."""
    if not hasattr(optimizer.step, RECORDED_MARK):
        warnings.warn(STEP_OVERRIDDEN_WARNING, UserWarning, stacklevel=stacklevel + 1)
    elif not getattr(optimizer, "_opt_called", False) and not _has_nonfinite_gradient(optimizer):
        warnings.warn(SCHEDULER_TOO_EARLY_WARNING, UserWarning, stacklevel=stacklevel + 1)


@contextmanager
def suppressed_order_warning(optimizer: Any) -> Iterator[None]:
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


def check_number(
    name: str, value: Any, *, ge: float | None = None, gt: float | None = None
) -> None:
    """Raise a ValueError if a value is not a number or is too small."""
    try:
        is_large_enough = (ge is None or bool(value >= ge)) and (gt is None or bool(value > gt))
        is_number = not math.isnan(value)
    except (TypeError, ValueError, RuntimeError):
        is_large_enough = is_number = False
    if not (is_large_enough and is_number):
        at_least = "" if ge is None else f" at least {ge}"
        above = "" if gt is None else f" above {gt}"
        raise ValueError(f"Expected {name} to be a number{at_least}{above}, but got {value!r}")


def check_finite_nonnegative(name: str, values: Any) -> None:
    """Raise a ValueError unless a number, or each number of a list, is finite and at least 0."""
    for value in values if isinstance(values, (list, tuple)) else (values,):
        check_number(name, value, ge=0)
        if math.isinf(value):
            raise ValueError(f"Expected {name} to be finite, but got {value!r}")


def check_counts(named_counts: Iterable[tuple[str, Any]]) -> None:
    """Raise a ValueError if a named number of steps is negative, or not a number."""
    for name, value in named_counts:
        check_number(name, value, ge=0)

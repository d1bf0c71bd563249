"""Define LRScheduler, the base of all schedulers."""

import warnings
from typing import Any, ClassVar, TypeVar

import torch.optim.lr_scheduler as torch_schedulers
from torch.optim import Optimizer

from optgen.optim.lr_scheduler import step_order
from optgen.optim.lr_scheduler.group_rates import (
    Value,
    check_optimizer,
    copy_group_values,
    copy_value,
    pair_with_groups,
    set_rates,
)
from optgen.runtime.torch_private import outside_dynamo

T = TypeVar("T")

EPOCH_DEPRECATION_WARNING = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being "
    "deprecated where possible. Please use `scheduler.step()` to step the "
    "scheduler. During the deprecation, if epoch is different from None, the "
    "closed form is used instead of the new chainable form, where available. "
    "Please open an issue if you are unable to replicate your use case: "
    "https://github.com/pytorch/pytorch/issues/new/choose."
)
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
        step_order.watch(optimizer)
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
            step_order.check(self.optimizer, stacklevel=2)
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
            step_order.watch(self.optimizer)


class _LRScheduler(LRScheduler, torch_schedulers._LRScheduler):
    """The name that LRScheduler had before torch 2.0."""

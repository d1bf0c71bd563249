"""Combine schedulers: one after the other, or all at once.

A composite has the same interface as its members, so composites can be nested: `_initial_step`
repeats the first step, `_update_lr(0)` restarts from the initial rates, `step` advances.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch.optim.lr_scheduler as torch_schedulers
from torch.optim import Optimizer

from optgen.optim.lr_scheduler.base import (
    LRScheduler,
    copy_group_values,
    set_rates,
    suppressed_order_warning,
)
from optgen.runtime.torch_private import outside_dynamo


class _Composite(LRScheduler):
    _unsaved_attributes: ClassVar[tuple[str, ...]] = ("optimizer", "_schedulers")
    _schedulers: Sequence[torch_schedulers.LRScheduler]

    def _check_members(self, optimizer: Optimizer, schedulers: Sequence[Any]) -> None:
        """Raise an error for members that need arguments to step, or have another optimizer."""
        name = type(self).__name__
        for index, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(
                    f"{name} at index {index} should have `optimizer` as its attribute."
                )
            if isinstance(scheduler, torch_schedulers.ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it "
                    "requires additional kwargs to be specified when calling `step`, "
                    f"but got one at index {index} in the given schedulers sequence."
                )
            if optimizer != scheduler.optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but "
                    f"got scheduler {type(scheduler).__name__} at index {index} has "
                    f"{scheduler.optimizer}, which is different from {type(optimizer).__name__}."
                )

    def _update_lr(self, epoch: int | None = None) -> None:
        """Restart from the initial rates. A `SequentialLR` calls this when a member begins."""
        if epoch != 0:
            raise NotImplementedError(f"{type(self).__name__} can go to step 0 only")
        reset_rates(self.optimizer)
        rewind(self)
        self._initial_step()

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes except the optimizer, with the states of the schedulers."""
        states = [scheduler.state_dict() for scheduler in self._schedulers]
        return {**super().state_dict(), "_schedulers": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a `state_dict` of this class, or of torch's class of the same name."""
        state = dict(state_dict)
        states = state.pop("_schedulers")
        if len(states) != len(self._schedulers):
            raise ValueError(
                f"the state is of {len(states)} schedulers, but this {type(self).__name__} "
                f"has {len(self._schedulers)}"
            )
        for scheduler, scheduler_state in zip(self._schedulers, states, strict=True):
            scheduler.load_state_dict(scheduler_state)
        super().load_state_dict(state)


def reset_rates(optimizer: Optimizer) -> None:
    """Set the rates to those that the groups had before any scheduler."""
    set_rates(zip(optimizer.param_groups, copy_group_values(optimizer, "initial_lr"), strict=True))


def leaves(scheduler: Any) -> Iterator[Any]:
    """Yield the plain schedulers in a composite, or a plain scheduler itself."""
    for member in getattr(scheduler, "_schedulers", ()):
        yield from leaves(member)
    if not hasattr(scheduler, "_schedulers") and hasattr(scheduler, "last_epoch"):
        yield scheduler


def rewind(scheduler: Any) -> None:
    """Set a scheduler, or all schedulers in a composite, to the step before the first one."""
    for leaf in leaves(scheduler):
        leaf.last_epoch = -1


class SequentialLR(_Composite):
    """Runs one scheduler after the other, each from its own step 0 and the initial rates.

    Args:
        optimizer (Optimizer): The optimizer whose rates are set.
        schedulers (list): The schedulers, composites too; each was made for this optimizer.
        milestones (list of int): The steps at which the second, third, … scheduler takes over.
        last_epoch (int): -1 to begin, else the last step that was taken. The schedulers, each made
            with its own default of -1, advance to the step after it. Default: -1.

    Raises:
        ValueError: `schedulers` is empty, or contains a `ReduceLROnPlateau` or a scheduler of
            another optimizer; or the milestones are not one fewer than the schedulers.
        TypeError: A scheduler has no `optimizer`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[torch_schedulers.LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError(
                f"{type(self).__name__} expects at least one scheduler, but got no scheduler."
            )
        self._check_members(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                "the number of milestone points, but got number of schedulers "
                f"{len(schedulers)} and the number of milestones to be equal to {len(milestones)}"
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = 0
        self.optimizer = optimizer
        if last_epoch >= 0:
            rewind(self)
        else:
            self.recursive_undo()
        self._initial_step()
        with suppressed_order_warning(optimizer):
            while self.last_epoch <= last_epoch:
                self.step()

    def recursive_undo(self, sched: Any = None) -> None:
        """Undo the step that the constructor of a scheduler took, by default of every member."""
        for leaf in leaves(self if sched is None else sched):
            leaf.last_epoch -= 1

    def _initial_step(self) -> None:
        reset_rates(self.optimizer)
        self.last_epoch = 0
        self._schedulers[self._current_index()]._initial_step()
        self._last_lr = copy_group_values(self.optimizer, "lr")

    def _current_index(self) -> int:
        """Return the index of the scheduler that sets the rates at `last_epoch`."""
        return bisect_right(self._milestones, self.last_epoch)

    @outside_dynamo
    def step(self) -> None:  # type: ignore[override]
        """Advance the current scheduler by one step, or begin the next one."""
        self.last_epoch += 1
        index = self._current_index()
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Composite):
    """Runs several schedulers at once: each changes the rates that the one before it has set.

    A `SequentialLR` resets the rates when it is made; make it before the others.

    Args:
        schedulers (sequence): The schedulers, composites too, all of one optimizer.
        optimizer (Optimizer, optional): Their optimizer. Default: that of the first scheduler.

    Raises:
        ValueError: `schedulers` is empty, or contains a `ReduceLROnPlateau` or a scheduler of
            another optimizer.
        TypeError: A scheduler has no `optimizer`.
    """

    def __init__(
        self, schedulers: Sequence[torch_schedulers.LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError(
                f"{type(self).__name__} expects at least one scheduler to be chained, "
                "but got no scheduler."
            )
        optimizer = optimizer or schedulers[0].optimizer
        self._check_members(optimizer, schedulers)
        self._schedulers = schedulers
        self.optimizer = optimizer
        self._last_lr = copy_group_values(optimizer, "lr")

    def _initial_step(self) -> None:
        for scheduler in self._schedulers:
            scheduler._initial_step()
        self._last_lr = copy_group_values(self.optimizer, "lr")

    @outside_dynamo
    def step(self) -> None:  # type: ignore[override]
        """Advance every scheduler by one step, in order."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = copy_group_values(self.optimizer, "lr")

"""Step with several optimizers as with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optgen.runtime import take_step
from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks


class OptimizerOfMembers(LightOptimizer):
    """Base of optimizers that step other optimizers, their `members`, as one."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all members, in a new list of the members' own dicts."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """The states of all members by parameter, in a new dict of the members' own dicts."""
        return {param: each for member in self.members for param, each in member.state.items()}

    @with_step_hooks
    def step(self, closure: Any = None) -> Any:
        """Take a step with every member, or change nothing if one of them refuses.

        All members that optgen generated check their step before any of them updates. Members of
        other libraries step in between, in their order: after the checks, before the updates.

        Args:
            closure: Reevaluates the model and returns the loss; called once, before all steps.

        Returns:
            The loss, or None without a closure.
        """
        loss = loss_of(closure)
        step_members(self.members, [{}] * len(self.members))
        return loss

    def notes(self) -> list[str]:
        """Return what `explain` says before the groups."""
        return []

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, to None or to zeros."""
        for member in self.members:
            member.zero_grad(set_to_none=set_to_none)


def loss_of(closure: Any) -> Any:
    """Call a closure as a step does; None has no loss."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def step_members(members: Sequence[Optimizer], inputs: Sequence[Mapping[str, Any]]) -> None:
    """Step optimizers together, each with its extra inputs."""
    pairs = [*zip(members, inputs, strict=True)]
    generated = [pair for pair in pairs if _generated(pair[0]) is not None]
    foreign = [member for member in members if _generated(member) is None]
    _JointStep(generated, foreign).enter(0)


def _generated(member: Any) -> Any:
    """Return the generated optimizer that is a member, or that a member wraps; else None."""
    while not hasattr(member, "_context"):
        inner: tuple[Any, ...] = getattr(member, "members", ())
        if isinstance(member, OptimizerOfMembers) or len(inner) != 1:
            return None
        member = inner[0]
    return member


class _JointStep:
    """One step of generated optimizers, around the steps of foreign ones.

    The members' `step` methods are entered one inside the other, with their hooks and checks. The
    innermost takes the steps of all.
    """

    def __init__(
        self, members: Iterable[tuple[Optimizer, Mapping[str, Any]]], foreign: Iterable[Optimizer]
    ) -> None:
        self._members, self._foreign = [*members], [*foreign]
        self._entered: list[Any] = []  # the generated optimizers that take a step

    def enter(self, index: int) -> None:
        """Enter the steps from a member on; take all steps behind the last."""
        if index == len(self._members):
            self._take()
            return
        member, inputs = self._members[index]
        optimizer, has_entered = _generated(member), False

        def go_on() -> None:
            nonlocal has_entered
            has_entered = True
            optimizer._context.joint_step = None
            self._entered.append(optimizer)
            self.enter(index + 1)

        optimizer._context.joint_step = go_on
        try:
            member.step(**inputs)
        finally:
            optimizer._context.joint_step = None
        if not has_entered:  # the member only created its state, as torch's checkpoints ask
            self.enter(index + 1)

    def _take(self) -> None:
        if self._foreign:
            take_step.check_step(self._entered)
        for member in self._foreign:
            member.step()
        take_step.step_together(self._entered)

"""Step with several optimizers as with one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from optgen.runtime.light_optimizer import LightOptimizer, with_step_hooks


class OptimizerOfMembers(LightOptimizer):
    """Base of optimizers that step other optimizers, their `members`, one after another."""

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
        """Take a step with every member.

        Args:
            closure: Reevaluates the model and returns the loss; called once, before all steps.

        Returns:
            The loss, or None without a closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self.members:
            member.step(closure=None)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, to None or to zeros."""
        for member in self.members:
            member.zero_grad(set_to_none=set_to_none)

"""Step small parameters where they are: a copy each way would take longer than their step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from optgen.offloading.host_rule import FACTOR

Group = dict[str, Any]


class SmallParams:
    """The parameters of an offloaded optimizer that the device steps.

    Args:
        device_class: The rule's class for the device.
        groups: The public groups.
        chosen: Tells whether the device steps a parameter.
        hyper: The arguments of the class.
    """

    def __init__(
        self,
        device_class: Callable[..., Any],
        groups: Sequence[Group],
        chosen: Callable[[Tensor], bool],
        hyper: Mapping[str, Any],
    ) -> None:
        small = [[p for p in group["params"] if chosen(p)] for group in groups]
        self.indices = [index for index, params in enumerate(small) if params]
        self._optimizer: Any = None
        if self.indices:
            own_groups = [{"params": small[index]} for index in self.indices]
            self._optimizer = device_class(own_groups, **hyper)
            self.copy_options(groups, 1.0)

    @property
    def params(self) -> list[Tensor]:
        """The parameters that the device steps."""
        groups = self._optimizer.param_groups if self._optimizer else []
        return [param for group in groups for param in group["params"]]

    def copy_options(self, groups: Sequence[Group], factor: float) -> None:
        """Take over the options of the public groups, and the factor of all gradients."""
        if not self._optimizer:
            return
        takes_factor = FACTOR in self._optimizer.rule.hypers
        for index, own in zip(self.indices, self._optimizer.param_groups, strict=True):
            kept = {"params", "param_names"}
            own.update({key: value for key, value in groups[index].items() if key not in kept})
            if takes_factor:
                own[FACTOR] = factor

    def init_state(self, state: Any) -> None:
        """Make the states that the first step would make."""
        if self._optimizer:
            self._optimizer.state = state
            self._optimizer.init_state()

    def step(self, groups: Sequence[Group], factor: float, state: Any) -> None:
        """Step the parameters that have gradients; their states are in the public `state`."""
        if self._optimizer:
            self._optimizer.state = state
            self.copy_options(groups, factor)
            self._optimizer.step()

"""Keep the states of parameters on the host: made, begun anew, loaded, and shown.

The constructor makes all states, so a step allocates nothing. The optimizer's `state` shows those
of a parameter after its first step, as in torch. Until then they follow the weights, because some
states begin as these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor

from optgen.offloading.buckets import HostParam
from optgen.offloading.checkpoint import copy_loaded
from optgen.offloading.host_memory import (
    begin_anew,
    create_states,
    missing_file_bytes,
    states_to_use,
)
from optgen.offloading.host_rule import MASTER
from optgen.offloading.state_files import StateFiles
from optgen.offloading.worker import Worker
from optgen.runtime.rule import Rule

Shown = MutableMapping[Tensor, Any]
"""The `state` of an optimizer, which a user may replace."""


class OwnedStates:
    """The states of an optimizer's parameters on the host.

    Args:
        rule: The rule of the states.
        groups: The groups of the optimizer.
        defaults: Its defaults.
        files: Where states that are made are moved to, if anywhere.
    """

    def __init__(
        self,
        rule: Rule,
        groups: Sequence[dict[str, Any]],
        defaults: Mapping[str, Any],
        files: StateFiles | None,
    ) -> None:
        self._rule, self._groups, self._defaults = rule, groups, defaults
        self._files = files
        self.owners: dict[Tensor, HostParam] = {}

    def make(self, worker: Worker) -> None:
        """Make all states that are missing, in the worker's thread.

        It touches the memory first, which is then near the cores that step.
        """
        if self._files is not None:
            owners = self.owners.values()
            self._files.reserve(missing_file_bytes(self._rule, owners, self._groups))
        worker.attempt(lambda: self._make(worker))

    def _make(self, worker: Worker) -> None:
        for owner in self.owners.values():
            worker.enter("creation of states", owner.name)
            create_states(self._rule, owner, self._groups, self._defaults, self._files)

    def to_use(self) -> tuple[list[bool], list[Any]]:
        """Return which states the options of groups ask for, and the memory of all states."""
        return states_to_use(self._rule, self._groups, self.owners.values())

    def renew(self, shown: Shown, has_changed: Callable[[Tensor], bool]) -> None:
        """Let states that no step has used begin as they would now, if parameters have changed.

        States that someone has removed begin anew, too.
        """
        for param, owner in self.owners.items():
            if param not in shown and not owner.states.keys() <= owner.new:
                self.take(owner, {})
            keys = owner.new & owner.states.keys() - {MASTER}  # masters follow by value
            if keys and has_changed(param):
                begin_anew(self._rule, owner, keys, self._groups, self._defaults)

    def take(self, owner: HostParam, loaded: Mapping[str, Any]) -> None:
        """Copy loaded states of a parameter; those that are lacking begin anew."""
        lacking = copy_loaded(owner, loaded, self._rule, self._groups)
        owner.new.clear()
        owner.new.update(lacking)
        if lacking:
            begin_anew(self._rule, owner, lacking, self._groups, self._defaults)

    def show(self, params: Iterable[Tensor], shown: Shown, is_step: bool = True) -> None:
        """Show the states of parameters. If a step does so, it uses them from now on."""
        for param in params:
            owner = self.owners[param]
            if is_step:
                owner.new.clear()
            shown.setdefault(param, owner.states)

    def in_memory(self) -> dict[Tensor, dict[str, Any]]:
        """Return all states by their parameters, shown or not."""
        return {param: {**each.states, **each.unmade} for param, each in self.owners.items()}

"""Restore the states of a step that fails before it updates anything."""

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor


class StateSnapshot:
    """The parameters that had a state, and the entries of each state; tensors are not copied."""

    def __init__(self, states: MutableMapping[Tensor, Any]) -> None:
        self._states = dict(states)
        self._values = list(map(dict, states.values()))

    def restore(self, states: MutableMapping[Tensor, Any]) -> None:
        """Restore parameters and entries, in their order; the dicts stay the same objects."""
        for values, before in zip(self._states.values(), self._values, strict=True):
            values.clear()
            values.update(before)
        states.clear()
        states.update(self._states)

"""Restore the states of a step that fails before it updates anything."""

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor


class StateSnapshot:
    """The parameters that had states, and the entries of their dicts; tensors are not copied."""

    def __init__(self, states: MutableMapping[Tensor, Any]) -> None:
        self._states = dict(states)
        self._entries = list(map(dict, states.values()))

    def restore(self, states: MutableMapping[Tensor, Any]) -> None:
        """Restore parameters and entries, in their order; the dicts stay the same objects."""
        for param_states, entries in zip(self._states.values(), self._entries, strict=True):
            param_states.clear()
            param_states.update(entries)
        states.clear()
        states.update(self._states)

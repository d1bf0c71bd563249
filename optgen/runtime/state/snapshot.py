"""Undo what a step that fails has done to the states before it updated anything."""

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor


class StateSnapshot:
    """An optimizer's states as they were: of which parameters, and what stood under their keys."""

    def __init__(self, states: MutableMapping[Tensor, Any]) -> None:
        self._states = dict(states)
        self._values = list(map(dict, states.values()))

    def restore(self, states: MutableMapping[Tensor, Any]) -> None:
        """Let the states be these again, in their order; the dicts stay themselves."""
        for values, before in zip(self._states.values(), self._values, strict=True):
            values.clear()
            values.update(before)
        states.clear()
        states.update(self._states)

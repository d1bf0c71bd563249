"""Placeholder states, made for a checkpoint to be loaded into, and removed if none is loaded.

torch's distributed checkpoints ask an optimizer for its state to learn what there is to load. If
the optimizer has no state, torch takes a step with zero gradients and a learning rate of zero. Here
such a step only creates states. Their values are wrong for training: Rprop's step sizes would be
zero. Nor may a rule with a special first step take the placeholders for states of an earlier step.
So the next step removes the placeholders that nobody has written to, and creates new states.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from optgen.runtime.tensors.dtensor import memory_version


class Placeholder(NamedTuple):
    """A state: its parameter, key and value, and the value's version in autograd at creation."""

    param: Tensor
    key: str
    value: Tensor
    memory_version: int


def placeholders_of(states: Mapping[Tensor, dict[str, Any]]) -> list[Placeholder]:
    """Return a placeholder for each tensor of these states."""
    return [
        Placeholder(param, key, value, memory_version(value))
        for param, values in states.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    ]


def remove_placeholders(
    placeholders: Sequence[Placeholder], states: MutableMapping[Tensor, Any]
) -> None:
    """Remove the placeholders that nobody has replaced or written to since they were made."""
    for each in placeholders:
        values = states.get(each.param, {})
        if values.get(each.key) is each.value and memory_version(each.value) == each.memory_version:
            del values[each.key]
            if not values:
                del states[each.param]

"""States made for a checkpoint to be loaded into, and taken back if none is.

torch's distributed checkpoints ask an optimizer for its state to know what there is to load. One
that has none yet is stepped, with gradients and a learning rate of zero. Here such a step only
creates states; they hold numbers that no training began with (Rprop's step sizes would be zero),
and a rule that treats a first step unlike the others must not take them for old ones. So the next
step takes back what nobody has written to, and creates it again.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from optgen.runtime.tensors.dtensor import memory_version


class Placeholder(NamedTuple):
    """A state that stands under a key of a parameter's, as it was made."""

    param: Tensor
    key: str
    value: Tensor
    memory_version: int


def placeholders_of(states: Mapping[Tensor, dict[str, Any]]) -> list[Placeholder]:
    """What all these states are now."""
    return [
        Placeholder(param, key, value, memory_version(value))
        for param, values in states.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    ]


def remove_placeholders(
    placeholders: Sequence[Placeholder], states: MutableMapping[Tensor, Any]
) -> None:
    """Remove the placeholders that nobody has written to since they were made."""
    for each in placeholders:
        values = states.get(each.param, {})
        if values.get(each.key) is each.value and memory_version(each.value) == each.memory_version:
            del values[each.key]
            if not values:
                del states[each.param]

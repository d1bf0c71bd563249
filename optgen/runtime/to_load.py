"""States made for a checkpoint to be loaded into, and taken back if none is.

torch's distributed checkpoints ask an optimizer for its state to know what there is to load. One
that has none yet is stepped, with gradients and a learning rate of zero. Here such a step only
creates states; they hold numbers that no training began with (Rprop's step sizes would be zero),
and a rule that treats a first step unlike the others must not take them for old ones. So the next
step takes back what nobody has written to, and creates it again.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from optgen.runtime.sharded.views import version

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


class Ahead(NamedTuple):
    """A state that stands under a key of a parameter's, as it was made."""

    param: Tensor
    key: str
    value: Tensor
    version: int


def made(states: Mapping[Tensor, dict[str, Any]]) -> list[Ahead]:
    """What all these states are now."""
    return [
        Ahead(param, key, value, version(value))
        for param, values in states.items()
        for key, value in values.items()
        if isinstance(value, Tensor)
    ]


def take_back(optimizer: "GeneratedOptimizer") -> None:
    """Remove those that are still as they were made."""
    states: Any = optimizer.state
    for each in optimizer._survey.ahead:
        values = states.get(each.param, {})
        if values.get(each.key) is each.value and version(each.value) == each.version:
            del values[each.key]
            if not values:
                del states[each.param]
    optimizer._survey.ahead = []

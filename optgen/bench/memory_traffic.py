"""What a step reads and writes, trip by trip: as much of a plan as a roofline has to know."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from optgen.runtime.rule import FACTS, State, truth


@dataclass(frozen=True)
class Access:
    """A list of tensors that a trip through memory reads, and writes back if they are `stored`.

    `key` is "param", "grad" or the state's; any other is memory that lives during a step only.
    """

    key: str
    stored: bool = False
    shape: str = "like"  # "like" the parameter, or one number per "row" or "col"
    when: str | None = None  # the group value that brings it into being

    def shape_for(self, param: Tensor) -> list[int]:
        """The shape of what it touches of a parameter."""
        return State(self.key, shape=self.shape).shape_for(param)


@dataclass(frozen=True)
class Traffic:
    """The trips through memory of a step, for parameters of which these facts hold."""

    trips: tuple[tuple[Access, ...], ...]
    facts: Mapping[str, bool] = field(default_factory=dict)

    def suits(self, param: Tensor) -> bool:
        """Tell whether these are the trips through a parameter of this shape."""
        return all(FACTS[fact](param) is holds for fact, holds in self.facts.items())

    def present(self, group: Mapping[str, object]) -> Iterator[list[Access]]:
        """The trips that the values of a group leave, with those that are stored first."""
        for trip in self.trips:
            touched = [t for t in trip if t.when is None or truth(group[t.when])]
            yield sorted(touched, key=lambda touch: not touch.stored)

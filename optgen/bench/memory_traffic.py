"""Describe which tensors a step reads and writes, sweep by sweep, for the roofline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from optgen.contract.states import FACTS, Shape
from optgen.runtime.rule import State, truth


@dataclass(frozen=True)
class Access:
    """A tensor that a sweep reads, and writes back if `stored`.

    `key` is "param", "grad" or the key of a state. Any other key names temporary memory of a
    step.
    """

    key: str
    stored: bool = False
    shape: Shape = "like"  # "like" the parameter, or one number per "row" or "col"
    when: str | None = None  # key of a group value or extra input: no access if false

    def shape_for(self, param: Tensor) -> list[int]:
        """Return the shape of the tensor for a parameter."""
        return State(self.key, shape=self.shape).shape_for(param)


@dataclass(frozen=True)
class Traffic:
    """The accesses of each sweep of a step, for parameters to which the facts apply."""

    sweeps: tuple[tuple[Access, ...], ...]
    facts: Mapping[str, bool] = field(default_factory=dict)

    def applies_to(self, param: Tensor) -> bool:
        """Tell whether the facts apply to a parameter."""
        return all(FACTS[fact](param.shape) is holds for fact, holds in self.facts.items())

    def accesses_by_sweep(self, group: Mapping[str, object]) -> Iterator[list[Access]]:
        """Yield the accesses of each sweep for the values of a group, stored tensors first."""
        for sweep in self.sweeps:
            accessed = [a for a in sweep if a.when is None or truth(group.get(a.when))]
            yield sorted(accessed, key=lambda access: not access.stored)

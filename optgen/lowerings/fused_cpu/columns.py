"""What a loop in C++ is made of: the arrays that it walks along, and what it does with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from optgen.ir.nodes import Program
from optgen.ir.plan import Sweep
from optgen.ir.value_kinds import Axes


@dataclass(frozen=True)
class Column:
    """One array that a loop walks along: `when` brings it into being, as a state's flag does."""

    name: str
    loaded: bool
    stored: bool
    when: str | None = None
    axes: Axes = Axes.TENSOR
    fewer: bool = False  # it has fewer axes than the loop: one number for all of it, or spread
    left: bool = False  # stored only for what is added up when the loop has ended
    type: str = "C"  # of what the array has


@dataclass(frozen=True)
class Loop:
    """What one loop does; `numbers` are the names that are one number for the whole tensor."""

    columns: Sequence[Column]
    body: Program
    numbers: Mapping[str, str] = field(default_factory=dict)  # and how they are read
    summed: Collection[str] = ()  # names that are read when the body has run
    several: bool = False  # it may take several elements at once, in what S stores


def sweep_loop(sweep: Sweep) -> Loop:
    """The one loop of an elementwise rule."""
    columns = [Column(s.name, True, s.stored, s.when) for s in sweep.streams]
    return Loop(columns, sweep.body, several=True)

"""Describe one C++ loop as data: its arrays and its body."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from optgen.ir.kinds import Axes
from optgen.ir.nodes import Program
from optgen.ir.plan import Sweep
from optgen.lowerings.fused_cpu.expression_printer import constant


@dataclass(frozen=True)
class LoopArray:
    """Array that a loop indexes. `when` is the flag, or "not flag", under which it exists."""

    name: str
    loaded: bool
    stored: bool
    when: str | None = None
    axes: Axes = Axes.TENSOR
    has_fewer_axes: bool = False  # than the loop: its value is one number, or is broadcast
    only_summed: bool = False  # the loop only adds the values to sums
    type: str = "C"  # of the array's elements


@dataclass(frozen=True)
class Loop:
    """Loop over arrays. `numbers` has the names with one value for the whole tensor."""

    arrays: Sequence[LoopArray]
    body: Program
    numbers: Mapping[str, str] = field(default_factory=dict)  # name -> C++ text
    sum_operands: Collection[str] = ()  # read after the body
    by_vectors: bool = False  # one iteration may compute a whole SIMD vector

    @property
    def flags(self) -> dict[str, str]:
        """Map each flag that decides which arrays exist to its template parameter."""
        names = (array.when.removeprefix("not ") for array in self.arrays if array.when)
        return {name: constant(name) for name in names}


def sweep_loop(sweep: Sweep) -> Loop:
    """Return the only loop of an elementwise rule."""
    arrays = [LoopArray(s.name, loaded=True, stored=s.stored, when=s.when) for s in sweep.streams]
    return Loop(arrays, sweep.body, by_vectors=True)

"""Describe one step of a C++ kernel as data: a loop, a reduction, or a draw of random numbers."""

from __future__ import annotations

from dataclasses import dataclass

from optgen.ir.kinds import Axes
from optgen.ir.nodes import Call, Program


@dataclass(frozen=True)
class Step:
    """Step of a kernel: a loop over values of these axes, a reduction to them, or a draw.

    `reads` and `writes` are values with axes; `numbers_read` and `numbers_written` are numbers of
    the whole tensor. `sweep` is the index of the sweep, over a large matrix, that the step is part
    of or follows.
    """

    name: str
    axes: Axes
    sweep: int
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    numbers_read: tuple[str, ...] = ()
    numbers_written: tuple[str, ...] = ()
    body: Program = ()
    reduction: str = ""  # "sum" or "max_abs", or an op that reduces over parameters; "" for a loop
    over_elements: bool = False  # whether the step reads or writes elements
    draws: Call | None = None  # the call whose random numbers the step makes

    @property
    def reduces_values(self) -> bool:
        """Tell whether the step reduces values with axes."""
        return bool(self.reduction and self.reads)

    @property
    def is_wide(self) -> bool:
        """Tell whether the step reduces one number of each of several parameters."""
        return bool(self.reduction and not self.reads)

    @property
    def is_loop(self) -> bool:
        """Tell whether the step computes values, or numbers of the whole tensor."""
        return not self.reduction and not self.draws

    @property
    def is_total_sum(self) -> bool:
        """Tell whether the step is a sum over all elements, which its loop accumulates."""
        return self.over_elements and self.reduction == "sum" and self.axes is Axes.NONE

    @property
    def index_name(self) -> str:
        """C++ name of the step's index."""
        if self.draws:
            return self.name.upper()
        return f"{'MAKE' if self.reduction else 'RUN'}_{self.name.upper()}"

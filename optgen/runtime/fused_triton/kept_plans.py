"""Keep a few launch plans of an optimizer or a function, each for the streams that it was made on.

The tables of a plan are written and read in the order of one stream per device. On another stream,
nothing would order an upload after the kernels that still read the old rows. The memory of a
dropped table would be given away there while a kernel reads it. So a plan serves the streams that
were current when it was made, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from optgen.runtime.fused_triton.launch_plan import LaunchPlan

_MAX_PLANS = 4
"""Plans kept for the same streams. Four averaged models can take turns without a new table, and so
can four sets of parameters that have gradients."""
_MAX_ALL_PLANS = 16
"""Plans kept for all streams together."""
_MAX_BYTES = 1 << 26
"""Device memory of all plans but the latest. The workspace of a rule that sums rows and columns
takes half a byte per element."""


class KeptPlans:
    """The plans that an optimizer or a function used last, the latest first."""

    def __init__(self) -> None:
        self._plans: list[LaunchPlan] = []

    def find(self, fits: Callable[[LaunchPlan], bool]) -> LaunchPlan | None:
        """Return a plan that is for the current streams and fits; None if there is none."""
        for plan in self._plans:
            if plan.is_for_current_streams() and fits(plan):
                if plan is not self._plans[0]:
                    self.add(plan)
                return plan
        return None

    def add(self, plan: LaunchPlan) -> None:
        """Keep a plan as the latest, and drop the plans that are too many or too large."""
        others = [each for each in self._plans if each is not plan]
        of_its_streams = [each for each in others if each.streams == plan.streams]
        dropped = of_its_streams[_MAX_PLANS - 1 :]
        kept = [each for each in others if each not in dropped][: _MAX_ALL_PLANS - 1]
        sums = accumulate(each.device_bytes for each in kept)
        small = [each for each, size in zip(kept, sums, strict=True) if size <= _MAX_BYTES]
        self._plans = [plan, *small]

    def __contains__(self, plan: LaunchPlan) -> bool:
        return any(each is plan for each in self._plans)

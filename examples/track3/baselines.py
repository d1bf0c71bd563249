"""AdamW and SGD with one learning rate for all parameters.

A search chooses the rate, and whether the projections begin at zeros or at scaled weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from examples.track3.result import ClassFactory, Group, Result
from examples.track3.schedules import cooldown, with_warmup
from optgen.optim import SGD, AdamW

STEPS = 1000
"""The steps for which the schedules are defined; a run shortens them to its own steps."""


@dataclass(frozen=True)
class Baseline:
    """An optimizer that is not a result, so it has no log.

    Attributes:
        title: a few words about it.
        factory: returns its class.
        options: further arguments, the same for all parameters.
        rates: the learning rates to try.
    """

    title: str
    factory: ClassFactory
    options: dict[str, Any]
    rates: tuple[float, ...]

    def as_result(self, lr: float, scaled: bool) -> Result:
        """Return the baseline as a result: a short warmup, then the schedule of result 1."""
        group = Group(lr, with_warmup(STEPS // 20, cooldown(STEPS, 0.7)), self.options)
        groups = {name: replace(group) for name in ("embed", "head", "vectors")}
        return Result(
            0, self.title, "", STEPS, self.factory, {"": group}, groups, self.factory, scaled
        )


BASELINES = {
    "tuned_adamw": Baseline(
        title="AdamW, tuned",
        factory=lambda: AdamW,
        options={"betas": (0.9, 0.95), "weight_decay": 0.1},
        rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    ),
    "tuned_sgd": Baseline(
        title="SGD, tuned",
        factory=lambda: SGD,
        options={"momentum": 0.9, "nesterov": True},
        rates=(0.03, 0.1, 0.3, 1.0, 3.0),
    ),
}
"""The baselines by name."""

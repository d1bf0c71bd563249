"""AdamW and SGD with one learning rate for all parameters, found by a search.

The search also tries whether the projections begin at zeros or at scaled weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from examples.track3.result import ClassFactory, Group, Result
from examples.track3.schedules import cooled, warmed
from optgen.optim import SGD, AdamW

STEPS = 1000


@dataclass(frozen=True)
class Baseline:
    """An optimizer that is not a result, so it has no log.

    Attributes:
        title: a few words about it.
        rule: returns its class.
        options: further arguments, the same for all parameters.
        rates: the learning rates to try.
    """

    title: str
    rule: ClassFactory
    options: dict[str, Any]
    rates: tuple[float, ...]

    def at(self, lr: float, scaled: bool) -> Result:
        """Return the baseline as a result: a short warmup, then the schedule of result 1."""
        group = Group(lr, warmed(STEPS // 20, cooled(STEPS, 0.7)), self.options)
        groups = {name: replace(group) for name in ("embed", "head", "vectors")}
        return Result(0, self.title, "", STEPS, self.rule, {"": group}, groups, self.rule, scaled)


BASELINES = {
    "tuned_adamw": Baseline(
        title="AdamW, tuned",
        rule=lambda: AdamW,
        options={"betas": (0.9, 0.95), "weight_decay": 0.1},
        rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    ),
    "tuned_sgd": Baseline(
        title="SGD, tuned",
        rule=lambda: SGD,
        options={"momentum": 0.9, "nesterov": True},
        rates=(0.03, 0.1, 0.3, 1.0, 3.0),
    ),
}
"""The baselines by name."""

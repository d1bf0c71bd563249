"""A lowering is data: the passes it wants, how it prints, its template and its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.ir.plan import Plan
from optgen.passes.plan import plan

PlanPass = Callable[[Plan], Plan]


@dataclass(frozen=True)
class Lowering:
    """One backend: `context` prints a plan, after `passes`, into what `template` lays out."""

    name: str
    filename: str
    template: str
    passes: tuple[PlanPass, ...]
    context: Callable[[Plan], Mapping[str, Any]]

    def lower(self, algorithm: Algorithm) -> Mapping[str, Any]:
        """Everything the template needs to write this algorithm's file."""
        return self.context(reduce(lambda p, change: change(p), self.passes, plan(algorithm)))

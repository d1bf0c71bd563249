"""A lowering is data: the passes it wants, how it prints, its template and its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from optgen.ir.algorithm import Algorithm
from optgen.ir.plan import Plan
from optgen.passes.plan import plan

Context = Mapping[str, Any]
PlanPass = Callable[[Plan], Plan]


@dataclass(frozen=True)
class Lowering:
    """One generated file: `lower` turns an algorithm into everything its template needs.

    A derived algorithm (`base=`) shares its base's rule, so only its class file is written. `of` is
    what the file is of: a "rule", or a class or a function that takes its steps through one.
    """

    name: str
    filename: str
    template: str
    lower: Callable[[Algorithm], Context]
    of: Literal["rule", "optimizer", "function"] = "rule"

    def applies(self, algorithm: Algorithm) -> bool:
        """Whether this algorithm has such a file."""
        if self.of == "rule":
            return algorithm.base is None
        return algorithm.is_function is (self.of == "function")


def planned(
    passes: tuple[PlanPass, ...], context: Callable[[Plan], Context]
) -> Callable[[Algorithm], Context]:
    """Plan an algorithm, run the passes in order, and print what comes out."""

    def lower(algorithm: Algorithm) -> Context:
        return context(reduce(lambda done, change: change(done), passes, plan(algorithm)))

    return lower

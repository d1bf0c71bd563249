"""Limit of a kernel's sets of values: a rule that needs more is refused with its place."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError

MOST_VALUES = 64  # a set of values or of steps is a 64-bit word: fused_cpu/jobs.h


def check_values(algorithm: Algorithm, values: int, steps: int) -> None:
    """Refuse a rule with too many reductions, and values between them.

    Raises:
        RuleError: there are more than `MOST_VALUES` of either, at the rule.
    """
    most = max(values, steps)
    if most > MOST_VALUES:
        message = f"a kernel has at most {MOST_VALUES} reductions and values between: here {most}"
        raise RuleError(
            algorithm.place, message, "reduce fewer values to numbers, rows and columns"
        )

"""Check that a rule fits the 64-bit sets of values and steps of a kernel."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError

MAX_VALUES = 64  # sets of values or steps are 64-bit integers: include/rule_tables.h


def check_values(algorithm: Algorithm, values: int, steps: int) -> None:
    """Raise RuleError, at the rule, if a rule has too many values or steps.

    Raises:
        RuleError: There are more than `MAX_VALUES` values or more than `MAX_VALUES` steps.
    """
    most = max(values, steps)
    if most > MAX_VALUES:
        limit = f"a kernel has at most {MAX_VALUES} reductions and values between them"
        message = f"{limit}; this rule has {most}"
        raise RuleError(
            algorithm.place, message, "reduce fewer values to numbers, rows and columns"
        )

"""Check that a rule's values and steps fit the sets of a kernel, which are 64-bit integers."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError

MAX_VALUES = 64  # the number of bits of a set: include/rule_tables.h


def check_values(algorithm: Algorithm, values: int, steps: int) -> None:
    """Check the number of values and the number of steps.

    Args:
        algorithm: the rule's algorithm, whose place an error names.
        values: the number of streams, rows, columns and matrix values.
        steps: the number of reductions and loops.

    Raises:
        RuleError: There are more than `MAX_VALUES` values or more than `MAX_VALUES` steps.
    """
    counts = {"reductions and loops": steps, "streams, rows, columns and matrix values": values}
    for items, count in counts.items():
        if count > MAX_VALUES:
            message = f"a kernel has at most {MAX_VALUES} {items}; this rule has {count}"
            hint = "reduce fewer values to numbers, rows and columns"
            raise RuleError(algorithm.place, message, hint)

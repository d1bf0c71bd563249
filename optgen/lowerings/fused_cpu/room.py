"""Limits of the kernels' tables: a rule that needs more is refused with its place."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.errors import RuleError

MOST_COLUMNS = 16  # four bits of a 64-bit word tell the dtype of each: fused_cpu/program.h
MOST_VALUES = 64  # a set of values or of steps is a 64-bit word: fused_cpu/jobs.h


def check_columns(algorithm: Algorithm, columns: int) -> None:
    """Refuse a rule with too many tensors and numbers of each parameter.

    Raises:
        RuleError: there are more than `MOST_COLUMNS`, at the last state.
    """
    if columns > MOST_COLUMNS:
        message = (
            f"a parameter has at most {MOST_COLUMNS} tensors and numbers, itself, its gradient and "
            f"its step count among them: here it has {columns}"
        )
        raise RuleError(algorithm.states[-1].place, message, "keep fewer states")


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

"""Check the limits of a kernel: sets of 64 bits, and loops with a variant for each choice."""

from __future__ import annotations

from collections.abc import Sized

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import RuleError

MAX_VALUES = 64  # the number of bits of a set: include/rule_tables.h

_MAX_FLAGS = 8


def check_flags(algorithm: Algorithm, flags: Sized) -> None:
    """Check that few flags decide which streams a loop has: n flags mean 2**n variants.

    Raises:
        RuleError: There are more than `_MAX_FLAGS` flags.
    """
    if len(flags) > _MAX_FLAGS:
        message = f"{len(flags)} flags decide which states exist; a kernel takes {_MAX_FLAGS}"
        hint = "give states that exist together one when=, or keep some of them always"
        raise RuleError(algorithm.place, message, hint)


def check_values(algorithm: Algorithm, num_values: int, num_steps: int) -> None:
    """Check that a rule has no more values and steps than a kernel can have.

    Args:
        algorithm: the rule's algorithm; an error names its place.
        num_values: the number of streams, rows, columns and matrix values.
        num_steps: the number of reductions and loops.

    Raises:
        RuleError: There are more than `MAX_VALUES` values or more than `MAX_VALUES` steps.
    """
    counts = {
        "reductions and loops": num_steps,
        "streams, rows, columns and matrix values": num_values,
    }
    for items, count in counts.items():
        if count > MAX_VALUES:
            message = f"a kernel has at most {MAX_VALUES} {items}; this rule has {count}"
            hint = "reduce fewer values to numbers, rows and columns"
            raise RuleError(algorithm.place, message, hint)

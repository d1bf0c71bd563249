"""Check a scheduler's arguments before the scheduler changes anything.

torch accepts numbers that fail in a later step, or that make a rate negative or NaN.
"""

import math
from collections.abc import Iterable
from typing import Any


def check_number(
    name: str, value: Any, *, ge: float | None = None, gt: float | None = None
) -> None:
    """Raise a ValueError if a value is not a number or is too small."""
    try:
        is_large_enough = (ge is None or bool(value >= ge)) and (gt is None or bool(value > gt))
        is_number = not math.isnan(value)
    except (TypeError, ValueError, RuntimeError):
        is_large_enough = is_number = False
    if not (is_large_enough and is_number):
        at_least = "" if ge is None else f" at least {ge}"
        above = "" if gt is None else f" above {gt}"
        raise ValueError(f"Expected {name} to be a number{at_least}{above}, but got {value!r}")


def check_finite_nonnegative(name: str, values: Any) -> None:
    """Raise a ValueError unless a number, or each number of a list, is finite and at least 0."""
    for value in values if isinstance(values, (list, tuple)) else (values,):
        check_number(name, value, ge=0)
        if math.isinf(value):
            raise ValueError(f"Expected {name} to be finite, but got {value!r}")


def check_counts(named_counts: Iterable[tuple[str, Any]]) -> None:
    """Raise a ValueError if a named number of steps is negative, or not a number."""
    for name, value in named_counts:
        check_number(name, value, ge=0)

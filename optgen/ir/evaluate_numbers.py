"""Compute ops on numbers without torch, which takes most of a second to import."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_LARGEST_INT_EXPONENT = 1000
"""The largest exponent for which a power of ints is computed as an int."""


def _power(a: float, b: float) -> float:
    if abs(b) > _LARGEST_INT_EXPONENT:
        a, b = float(a), float(b)  # computed with ints, 10**10**10 would never finish
    result = a**b
    if isinstance(result, int | float):
        return result
    raise ValueError("the root of a negative number is not real")


PYTHON_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": _power,
    "%": operator.mod,
    "neg": operator.neg,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "tanh": math.tanh,
    "sin": math.sin,
    "cos": math.cos,
    "atan2": math.atan2,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "abs": abs,
    "maximum": max,
    "minimum": min,
}
"""Ops that compute a number from numbers, each as a Python function."""


_AS_THE_EVALUATOR = frozenset(
    (*("+", "-", "*", "/", "neg", "abs", "sqrt"), *("exp", "log", "tanh", "sin", "cos", "atan2"))
)
"""Ops that give Python's floats the evaluator's bits, except where Python raises an error."""
_TO_INTEGERS = frozenset(("floor", "ceil", "round"))


def evaluate_numbers(op: str, numbers: Sequence[float]) -> float | bool:
    """Return the result of an op on numbers, as the evaluator computes it in float64.

    Python computes the usual ops: IEEE 754 fixes their bits, or both call the C library. The
    meaning on tensors computes the rest, and what is an error in Python, such as 1 / 0.
    """
    values = [float(number) for number in numbers]
    try:
        if op in _AS_THE_EVALUATOR:
            return float(PYTHON_FUNCTIONS[op](*values))
        if op in _TO_INTEGERS:
            if not math.isfinite(values[0]):
                return values[0]
            return math.copysign(PYTHON_FUNCTIONS[op](*values), values[0])  # -0.0 stays so
        if op == "**" and abs(values[1]) != 0.5:  # of which the evaluator takes the root
            return float(math.pow(*values))
    except (ArithmeticError, ValueError):
        pass
    return _meaning_of_numbers(op, numbers)


def _meaning_of_numbers(op: str, numbers: Sequence[float]) -> float | bool:
    """Return what the meaning of an op on tensors gives for numbers in float64."""
    import torch

    from optgen.ir.meanings import MEANINGS

    operands = [torch.tensor(number, dtype=torch.float64) for number in numbers]
    result: float | bool = MEANINGS[op](*operands).item()
    return result

"""The words of the spec language, as functions that refuse to run: a spec is read."""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(name: str) -> NoReturn:
    raise TypeError(f"{name}() is a word of the spec language, which is read and never run")


def require(condition: Any, message: str) -> None:
    """Make the constructor refuse hyperparameters that do not meet a condition.

    Args:
        condition: comparisons of hyperparameters, joined by and, or, not.
        message: what the ValueError says; a hyperparameter's name in braces is its value.
    """
    _refuse("require")


def fresh(state: Any) -> Any:
    """Whether a state was made in this step: the first in which the parameter has a gradient."""
    _refuse("fresh")


def sqrt(x: Any) -> Any:
    """The square root; NaN below zero."""
    _refuse("sqrt")


def exp(x: Any) -> Any:
    """e to the power of x."""
    _refuse("exp")


def log(x: Any) -> Any:
    """The natural logarithm; -inf at zero, NaN below."""
    _refuse("log")


def abs(x: Any) -> Any:
    """The absolute value."""
    _refuse("abs")


def sign(x: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    _refuse("sign")


def maximum(a: Any, b: Any) -> Any:
    """The larger of the two, element by element; NaN where either is."""
    _refuse("maximum")


def minimum(a: Any, b: Any) -> Any:
    """The smaller of the two, element by element; NaN where either is."""
    _refuse("minimum")


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition, a comparison, holds, and b elsewhere, element by element."""
    _refuse("where")


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x, but at least low and at most high."""
    _refuse("clamp")


def lerp(start: Any, end: Any, weight: Any) -> Any:
    """The value a fraction `weight` of the way: start + weight * (end - start)."""
    _refuse("lerp")

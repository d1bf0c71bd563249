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


def row_sum(x: Any) -> Any:
    """The sum along the last axis, which stays with one element: one number per row."""
    _refuse("row_sum")


def col_sum(x: Any) -> Any:
    """The sum along the axis before the last, which stays with one element: one per column."""
    _refuse("col_sum")


def row_mean(x: Any) -> Any:
    """The mean along the last axis, which stays with one element: one number per row."""
    _refuse("row_mean")


def col_mean(x: Any) -> Any:
    """The mean along the axis before the last, which stays with one element: one per column."""
    _refuse("col_mean")


def sum(x: Any) -> Any:
    """The sum of all elements: one number per parameter."""
    _refuse("sum")


def mean(x: Any) -> Any:
    """The mean of all elements: one number per parameter."""
    _refuse("mean")


def norm(x: Any) -> Any:
    """The Euclidean norm of all elements: sqrt(sum(x**2))."""
    _refuse("norm")


def rms(x: Any) -> Any:
    """The root of the mean square of all elements: sqrt(mean(x**2))."""
    _refuse("rms")


def max_abs(x: Any) -> Any:
    """The largest absolute value among all elements; NaN where there is one."""
    _refuse("max_abs")


def orthogonalize(x: Any, coefficients: Any, steps: Any, eps: Any) -> Any:
    """Every matrix of x with its singular values near one, by Newton-Schulz iterations.

    Args:
        x: a tensor of matrices, which are its last two axes.
        coefficients: a hyperparameter of three numbers a, b, c: a step is y -> a y + b y y' y +
            c y y' y y' y, from y = x / norm(x).
        steps: how many of them.
        eps: the least norm to divide by.
    """
    _refuse("orthogonalize")


def factored(p: Any) -> Any:
    """Whether the parameter has rows and columns: more than one axis."""
    _refuse("factored")


def ndim(p: Any) -> Any:
    """How many axes the parameter has."""
    _refuse("ndim")


def numel(p: Any) -> Any:
    """How many elements the parameter has."""
    _refuse("numel")


def rows(p: Any) -> Any:
    """How many rows each matrix of the parameter has: the size of its last axis but one."""
    _refuse("rows")


def cols(p: Any) -> Any:
    """How many columns each matrix of the parameter has: the size of its last axis."""
    _refuse("cols")


def machine_eps(p: Any) -> Any:
    """The distance from 1 to the next number of the parameter's dtype: torch.finfo(dtype).eps."""
    _refuse("machine_eps")

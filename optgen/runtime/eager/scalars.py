"""Compute with one number per parameter: step counts, scalar states, hyperparameters.

The functions take floats, tensors and TensorLists, so that the functional form of a rule is written
once. Graph capture and autograd need float64 tensors; all other steps use floats.
"""

import builtins
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import torch
from torch import Tensor

from optgen.runtime.eager.tensor_lists import TensorList

Scalar = float | Tensor
S = TypeVar("S", bound=Scalar)
NUMBER_TYPES = (int, float)


def sqrt(x: S) -> S:
    """Return the square root; NaN below zero, for floats too."""
    return _each(x, torch.sqrt, _float_sqrt)


def exp(x: S) -> S:
    """Return the exponential; infinity where a float overflows."""
    return _each(x, torch.exp, _float_exp)


def log(x: S) -> S:
    """Return the natural logarithm; minus infinity at zero, NaN below zero."""
    return _each(x, torch.log, _float_log)


def tanh(x: S) -> S:
    """Return the hyperbolic tangent."""
    return _each(x, torch.tanh, math.tanh)


def sin(x: S) -> S:
    """Return the sine; NaN for an infinite number, for which Python raises an error."""
    return _each(x, torch.sin, lambda number: math.nan if math.isinf(number) else math.sin(number))


def cos(x: S) -> S:
    """Return the cosine; NaN for an infinite number, for which Python raises an error."""
    return _each(x, torch.cos, lambda number: math.nan if math.isinf(number) else math.cos(number))


@overload
def atan2(y: float, x: float) -> float: ...
@overload
def atan2(y: Tensor, x: Scalar) -> Tensor: ...
@overload
def atan2(y: Scalar, x: Tensor) -> Tensor: ...
@overload
def atan2(y: Scalar, x: Scalar) -> Scalar: ...
def atan2(y: Scalar, x: Scalar) -> Scalar:
    """Return the angle of the point (x, y)."""
    if not (isinstance(y, NUMBER_TYPES) and isinstance(x, NUMBER_TYPES)):
        return torch.atan2(*_tensors(y, x))
    return math.atan2(y, x)


def floor(x: S) -> S:
    """Return the largest whole number that is not above x, as a float."""
    return _each(x, torch.floor, lambda number: _round_keeping_sign(number, math.floor))


def ceil(x: S) -> S:
    """Return the smallest whole number that is not below x, as a float."""
    return _each(x, torch.ceil, lambda number: _round_keeping_sign(number, math.ceil))


def round(x: S) -> S:
    """Return the nearest whole number as a float, ties to even."""
    return _each(x, torch.round, lambda number: _round_keeping_sign(number, builtins.round))


def sign(x: S) -> S:
    """Return -1, 0 or 1; 0 for NaN, as torch returns."""
    return _each(x, torch.sign, lambda number: float((number > 0) - (number < 0)))


@overload
def maximum(a: float, b: float) -> float: ...
@overload
def maximum(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def maximum(a: Scalar, b: Tensor) -> Tensor: ...
@overload
def maximum(a: Scalar, b: Scalar) -> Scalar: ...
def maximum(a: Scalar, b: Scalar) -> Scalar:
    """Return the larger of two numbers; NaN if either is NaN."""
    if not (isinstance(a, NUMBER_TYPES) and isinstance(b, NUMBER_TYPES)):
        return torch.maximum(*_tensors(a, b))
    return a if a >= b or math.isnan(a) else b


@overload
def minimum(a: float, b: float) -> float: ...
@overload
def minimum(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def minimum(a: Scalar, b: Tensor) -> Tensor: ...
@overload
def minimum(a: Scalar, b: Scalar) -> Scalar: ...
def minimum(a: Scalar, b: Scalar) -> Scalar:
    """Return the smaller of two numbers; NaN if either is NaN."""
    if not (isinstance(a, NUMBER_TYPES) and isinstance(b, NUMBER_TYPES)):
        return torch.minimum(*_tensors(a, b))
    return a if a <= b or math.isnan(a) else b


def clamp(x: S, low: Scalar, high: Scalar) -> S:
    """Return a value kept within two bounds; its gradient at a bound is that of torch's clamp."""
    if isinstance(x, Tensor) and not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return cast(S, torch.clamp(x, low, high))
    return cast(S, minimum(maximum(x, low), high))


@overload
def lerp(a: float, b: float, weight: float) -> float: ...
@overload
def lerp(a: Tensor, b: Scalar, weight: Scalar) -> Tensor: ...
@overload
def lerp(a: Scalar, b: Scalar, weight: Scalar) -> Scalar: ...
def lerp(a: Scalar, b: Scalar, weight: Scalar) -> Scalar:
    """Interpolate: return the value a fraction `weight` of the way from a to b."""
    if isinstance(weight, NUMBER_TYPES) and _are_alike(a, b):
        return torch.lerp(cast(Tensor, a), cast(Tensor, b), weight)
    return a + weight * (b - a)


def _are_alike(a: Scalar, b: Scalar) -> bool:
    """Tell whether two values are tensors, or lists of tensors, of one dtype."""
    are_of_one_class = all(isinstance(x, Tensor) for x in (a, b)) or all(
        isinstance(x, TensorList) for x in (a, b)
    )
    return are_of_one_class and cast(Tensor, a).dtype == cast(Tensor, b).dtype


@overload
def divide(a: float, b: float) -> float: ...
@overload
def divide(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def divide(a: Scalar, b: Scalar) -> Scalar: ...
def divide(a: Scalar, b: Scalar) -> Scalar:
    """Return a / b; infinity or NaN if b is zero."""
    return _compute(lambda: a / b, torch.div, a, b)


@overload
def power(a: float, b: float) -> float: ...
@overload
def power(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def power(a: Scalar, b: Scalar) -> Scalar: ...
def power(a: Scalar, b: Scalar) -> Scalar:
    """Return a**b; infinity where a float overflows, NaN where the root is not real."""
    return _compute(lambda: a**b, torch.pow, a, b)


@overload
def remainder(a: float, b: float) -> float: ...
@overload
def remainder(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def remainder(a: Scalar, b: Scalar) -> Scalar: ...
def remainder(a: Scalar, b: Scalar) -> Scalar:
    """Return a % b, with the sign of b; NaN if b is zero."""
    return _compute(lambda: a % b, torch.remainder, a, b)


def _compute(
    by_python: Callable[[], Any], by_torch: Callable[..., Tensor], a: Scalar, b: Scalar
) -> Scalar:
    """Compute with Python; with torch if Python raises or returns a complex number."""
    try:
        result = by_python()
    except ArithmeticError:
        result = None
    if result is None or isinstance(result, complex):
        result = by_torch(*(torch.as_tensor(x, dtype=torch.float64) for x in (a, b))).item()
    return cast(Scalar, result)


def _each(x: S, on_tensor: Callable[[Tensor], Tensor], on_float: Callable[[float], float]) -> S:
    return cast(S, on_float(x) if isinstance(x, NUMBER_TYPES) else on_tensor(x))


def _float_sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def _float_exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _float_log(x: float) -> float:
    if x == 0:
        return -math.inf
    return math.nan if x < 0 else math.log(x)


def _round_keeping_sign(x: float, rounding: Callable[[float], int]) -> float:
    """Return a rounded number with the sign of x, so that -0.25 rounds to -0.0."""
    return math.copysign(rounding(x), x) if math.isfinite(x) else x


def _tensors(a: Scalar, b: Scalar) -> tuple[Tensor, Tensor]:
    if isinstance(a, NUMBER_TYPES):
        return torch.full_like(cast(Tensor, b), a), cast(Tensor, b)
    return a, torch.full_like(a, b) if isinstance(b, NUMBER_TYPES) else b

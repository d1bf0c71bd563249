"""Compute with one number per parameter: step counts, scalar states, hyperparameters, conditions.

The functions take floats, tensors and TensorLists, so that the functional form of a rule is written
once. Graph capture and autograd need float64 tensors; all other steps use floats. A tensor of one
number is computed as a float where it can be: torch's functions have other last bits on other CPUs.
"""

import builtins
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast, overload

import torch
from torch import Tensor

from optgen.contract.constants import NUM_SEEDS
from optgen.runtime.eager.tensor_lists import TensorList, each_of
from optgen.runtime.rule import truth
from optgen.runtime.torch_private import compiling, following

Scalar = float | Tensor
S = TypeVar("S", bound=Scalar)
NUMBER_TYPES = (int, float)


def sqrt(x: S) -> S:
    """Return the square root; NaN below zero, for floats too. The root of a number is IEEE's."""
    return cast(S, _compute(_tensor_sqrt, _float_sqrt, x))


def exp(x: S) -> S:
    """Return the exponential; infinity where a float overflows."""
    return cast(S, _compute(torch.exp, _float_exp, x))


def log(x: S) -> S:
    """Return the natural logarithm; minus infinity at zero, NaN below zero."""
    return cast(S, _compute(torch.log, _float_log, x))


def tanh(x: S) -> S:
    """Return the hyperbolic tangent."""
    return cast(S, _compute(torch.tanh, math.tanh, x))


def sin(x: S) -> S:
    """Return the sine; NaN for an infinite number, for which Python raises an error."""
    return cast(S, _compute(torch.sin, lambda x: math.nan if math.isinf(x) else math.sin(x), x))


def cos(x: S) -> S:
    """Return the cosine; NaN for an infinite number, for which Python raises an error."""
    return cast(S, _compute(torch.cos, lambda x: math.nan if math.isinf(x) else math.cos(x), x))


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
    return cast(Scalar, _compute(lambda y, x: torch.atan2(*_tensors(y, x)), math.atan2, y, x))


def floor(x: S) -> S:
    """Return the largest whole number that is not above x, as a float."""
    return cast(S, _compute(torch.floor, partial(_round_keeping_sign, math.floor), x))


def ceil(x: S) -> S:
    """Return the smallest whole number that is not below x, as a float."""
    return cast(S, _compute(torch.ceil, partial(_round_keeping_sign, math.ceil), x))


def round(x: S) -> S:
    """Return the nearest whole number as a float, ties to even."""
    return cast(S, _compute(torch.round, partial(_round_keeping_sign, builtins.round), x))


def sign(x: S) -> S:
    """Return -1, 0 or 1; 0 for NaN, as torch returns."""
    return cast(S, _compute(torch.sign, lambda x: float((x > 0) - (x < 0)), x))


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
    """Return a / b, correctly rounded; infinity or NaN if b is zero."""
    if isinstance(a, NUMBER_TYPES) and isinstance(b, Tensor):
        return torch.div(b.new_full((), a), b)  # `a / b` is b.reciprocal() * a
    return cast(Scalar, _ieee(operator.truediv, torch.div, a, b))


@overload
def power(a: float, b: float) -> float: ...
@overload
def power(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def power(a: Scalar, b: Scalar) -> Scalar: ...
def power(a: Scalar, b: Scalar) -> Scalar:
    """Return a**b; infinity where a float overflows, NaN where the root is not real."""
    return cast(Scalar, _compute(torch.pow, partial(_ieee, operator.pow, torch.pow), a, b))


@overload
def remainder(a: float, b: float) -> float: ...
@overload
def remainder(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def remainder(a: Scalar, b: Scalar) -> Scalar: ...
def remainder(a: Scalar, b: Scalar) -> Scalar:
    """Return a % b, with the sign of b; NaN if b is zero."""
    return cast(Scalar, _ieee(operator.mod, torch.remainder, a, b))


def _ieee(
    by_python: Callable[[Any, Any], Any], by_torch: Callable[..., Tensor], a: Scalar, b: Scalar
) -> Any:
    """Compute with Python; with torch if Python raises or returns a complex number."""
    try:
        result = by_python(a, b)
    except ArithmeticError:
        result = None
    if result is None or isinstance(result, complex):
        result = by_torch(*(torch.as_tensor(x, dtype=torch.float64) for x in (a, b))).item()
    return result


def _compute(
    on_tensors: Callable[..., Tensor], on_floats: Callable[..., float], *operands: Scalar
) -> Any:
    """Compute a function of floats, or of tensors; of tensors with one number as of floats."""
    tensors = [x for x in operands if not isinstance(x, NUMBER_TYPES)]
    if not tensors:
        return on_floats(*operands)
    if not all(map(_is_plain_number, tensors)) or len({x.dtype for x in tensors}) > 1:
        return on_tensors(*operands)
    like = max(tensors, key=Tensor.dim)
    # A float beside a tensor has the tensor's dtype.
    rounded = (x if isinstance(x, Tensor) else like.new_full((), x) for x in operands)
    number = on_floats(*(x.item() for x in rounded))
    return torch.full_like(like, number, dtype=torch.float64).to(like.dtype)


def _is_plain_number(x: Any) -> bool:
    """Tell whether a tensor is one number on the CPU, whose value may be read."""
    is_number = type(x) is Tensor and x.numel() == 1 and x.is_cpu and x.is_floating_point()
    return is_number and not following()


def _tensor_sqrt(x: Any) -> Any:
    """Return torch's square root, whose last bit is corrected if x holds numbers on the CPU.

    On Intel CPUs torch calls MKL, whose last bit is wrong for 0.7 % of numbers. The complex root
    of a positive number calls the C library, whose root is IEEE's. Compilers write roots of their
    own, which are IEEE's too. The derivative stays torch's.
    """
    if isinstance(x, TensorList) and any(map(_holds_numbers, x.tensors)):
        return each_of(_tensor_sqrt, x)
    if isinstance(x, TensorList) or not _holds_numbers(x) or compiling():
        return torch.sqrt(x)
    root = torch.sqrt(x)
    error = x.detach().to(torch.complex128).sqrt().real.to(x.dtype) - root.detach()
    return torch.where(error.abs() > 0, root + error, root)  # keeps NaN, infinity and -0.0


def _holds_numbers(x: Tensor) -> bool:
    """Tell whether a tensor may hold numbers of the rule; elements of float64 cannot be told apart.

    Numbers are computed in float64. Only a scalar state, which is one number, may be a float32.
    """
    return x.is_cpu and (x.dtype == torch.float64 or (x.numel() == 1 and x.dtype == torch.float32))


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


def _round_keeping_sign(rounding: Callable[[float], int], x: float) -> float:
    """Return a rounded number with the sign of x, so that -0.25 rounds to -0.0."""
    return math.copysign(rounding(x), x) if math.isfinite(x) else x


def _tensors(a: Scalar, b: Scalar) -> tuple[Tensor, Tensor]:
    if isinstance(a, NUMBER_TYPES):
        return torch.full_like(cast(Tensor, b), a), cast(Tensor, b)
    return a, torch.full_like(a, b) if isinstance(b, NUMBER_TYPES) else b


def holds(value: object) -> bool:
    """Tell whether a hyperparameter is neither None nor 0; a tensor is true, and is not read."""
    return truth(value)


@overload
def both(a: bool, b: bool) -> bool: ...
@overload
def both(a: Tensor, b: bool | Tensor) -> Tensor: ...
@overload
def both(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor: ...
def both(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor:
    """Tell whether two conditions hold; element by element if one is a tensor."""
    return a & b


@overload
def either(a: bool, b: bool) -> bool: ...
@overload
def either(a: Tensor, b: bool | Tensor) -> Tensor: ...
@overload
def either(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor: ...
def either(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor:
    """Tell whether at least one of two conditions holds; element by element if one is a tensor."""
    return a | b


@overload
def opposite(condition: bool) -> bool: ...
@overload
def opposite(condition: Tensor) -> Tensor: ...
def opposite(condition: bool | Tensor) -> bool | Tensor:
    """Negate a condition; element by element if it is a tensor."""
    return not condition if isinstance(condition, bool) else ~condition


@overload
def where(condition: bool, a: S, b: S) -> S: ...
@overload
def where(condition: Tensor, a: Scalar, b: Scalar) -> Tensor: ...
def where(condition: bool | Tensor, a: Scalar, b: Scalar) -> Scalar:
    """Choose one of two values; element by element if the condition is a tensor."""
    if isinstance(condition, bool):
        return _broadcast_chosen(a, b) if condition else _broadcast_chosen(b, a)
    if isinstance(a, NUMBER_TYPES) and isinstance(b, NUMBER_TYPES):  # torch would return float32
        a = torch.full_like(condition, a, dtype=torch.float64)
    return torch.where(condition, a, b)


def _broadcast_chosen(chosen: Scalar, other: Scalar) -> Scalar:
    """Return the chosen value as torch's `where` would; a float if both are floats."""
    if isinstance(chosen, TensorList) or isinstance(other, TensorList):
        return cast(Scalar, each_of(_broadcast_chosen, chosen, other))
    if not isinstance(other, Tensor):
        return chosen.clone() if isinstance(chosen, Tensor) else chosen
    if not isinstance(chosen, Tensor):
        return other.new_full((), chosen).expand(other.shape)
    shape = torch.broadcast_shapes(chosen.shape, other.shape)
    return chosen.to(torch.result_type(chosen, other), copy=True).expand(shape)


def where_number(condition: Tensor | TensorList, a: Scalar, b: Scalar) -> Tensor:
    """Choose one of two numbers by a condition that is a tensor of one element.

    Return a float64 tensor of one element. It is 0-dim, unless one of the numbers is a reduction:
    then it has the reduction's shape.
    """
    if isinstance(condition, TensorList):
        return cast(Tensor, each_of(where_number, condition, a, b))
    like = torch.zeros((), dtype=torch.float64, device=condition.device)
    return torch.where(condition.reshape(()), like + a, like + b)


def in_dtype_of(like: Tensor | TensorList, number: Scalar) -> Tensor:
    """Return a number in the dtype of a tensor, so that torch's `where` keeps that dtype."""
    tensor = like.tensors[0] if isinstance(like, TensorList) else like
    if isinstance(number, TensorList):
        return cast(Tensor, each_of(lambda one: in_dtype_of(tensor, one), number))
    if isinstance(number, Tensor):
        return number.to(tensor.dtype)
    return tensor.new_full((), number)


def advance(steps: list[Tensor]) -> float:
    """Add 1 to the step counts of a bucket; return the count, which is equal for all."""
    if steps[0].is_cpu:
        # The other operand is a CPU tensor: torch would wrap a Python number once per step count.
        torch._foreach_add_(steps, torch.ones((), device="cpu"), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)
    return float(steps[0].item())


def store(states: list[Tensor], value: Scalar) -> float:
    """Write a scalar state of a whole bucket; return the value as the state's dtype rounds it."""
    for state in states:
        state.fill_(value)
    return float(states[0].item())


def numbers_of(states: list[Tensor]) -> Tensor:
    """Return the scalar states of a bucket, one for each parameter, as a vector of float64."""
    device = states[0].device
    return torch.stack([state.to(device, torch.float64) for state in states])


def keys_of(streams: list[Tensor]) -> Tensor:
    """Return the numbers below `NUM_SEEDS` that a draw takes for the streams of a bucket."""
    return floor(numbers_of(streams) % NUM_SEEDS)


def key_of(stream: Tensor) -> float:
    """Return the number below `NUM_SEEDS` that a draw takes for the stream of one parameter."""
    return floor(stream.item() % NUM_SEEDS)


def advance_one(step: Tensor | TensorList, capturable: bool) -> Scalar:
    """Add 1 to the step count of one parameter; return the count as `read_one` does."""
    step.add_(1)
    return read_one(step, capturable)


def store_one(state: Tensor | TensorList, value: Scalar, capturable: bool) -> Scalar:
    """Write the scalar state of one parameter; return it as `read_one` does."""
    state.fill_(value)
    return read_one(state, capturable)


def read_one(state: Tensor | TensorList, capturable: bool) -> Scalar:
    """Return the scalar state of one parameter: a float; for capture or autograd, a new tensor."""
    if isinstance(state, TensorList):
        return state.vector()
    if capturable or state.requires_grad:
        return state.to(torch.float64, copy=True)
    return float(state.item())

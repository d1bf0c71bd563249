"""Arithmetic on what is one number per parameter: step counts, scalar states, hyperparameters.

The functions below `store` work on floats and on 0-dim tensors alike: the functional form of a
rule is written once, and a graph capture sees tensors where everything else sees floats.
"""

import math

import torch
from torch import Tensor

Scalar = float | Tensor


def advance(steps: list[Tensor]) -> float:
    """Count one step for every tensor of a bucket, and return the count they share."""
    if steps[0].is_cpu:
        # A CPU tensor as the other operand: a Python number would be wrapped once per step.
        torch._foreach_add_(steps, torch.ones((), device="cpu"), alpha=1.0)
    else:
        torch._foreach_add_(steps, 1)
    return float(steps[0].item())


def store(states: list[Tensor], value: Scalar) -> float:
    """Write a scalar state of a whole bucket; return what was stored, rounded as it was stored."""
    for state in states:
        state.fill_(value)
    return float(states[0].item())


def advance_one(step: Tensor, capturable: bool) -> Scalar:
    """Count one step of one parameter; return the count, as a tensor where a graph must see it."""
    step += 1
    return step if capturable else float(step.item())


def store_one(state: Tensor, value: Scalar, capturable: bool) -> Scalar:
    """Write the scalar state of one parameter; return it, as a tensor where a graph must see it."""
    state.fill_(value)
    return state.clone() if capturable else float(state.item())


def sqrt(x: Scalar) -> Scalar:
    """The square root; not a number below zero, for floats too."""
    if isinstance(x, Tensor):
        return x.sqrt()
    return math.sqrt(x) if x >= 0 else math.nan


def exp(x: Scalar) -> Scalar:
    """The exponential; infinite where a float overflows."""
    if isinstance(x, Tensor):
        return x.exp()
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def log(x: Scalar) -> Scalar:
    """The natural logarithm; minus infinity at zero, not a number below it."""
    if isinstance(x, Tensor):
        return x.log()
    if x > 0:
        return math.log(x)
    return -math.inf if x == 0 else math.nan


def sign(x: Scalar) -> Scalar:
    """-1, 0 or 1; zero for what is not a number, as torch's."""
    if isinstance(x, Tensor):
        return x.sign()
    return float((x > 0) - (x < 0))


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two; not a number where either is none."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.maximum(*_tensors(a, b))
    return a if a >= b or math.isnan(a) else b


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of two; not a number where either is none."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.minimum(*_tensors(a, b))
    return a if a <= b or math.isnan(a) else b


def where(condition: bool | Tensor, a: Scalar, b: Scalar) -> Scalar:
    """One of two values; a tensor condition evaluates neither less, a bool picks."""
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


def clamp(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """A value kept within two bounds."""
    return minimum(maximum(x, low), high)


def lerp(a: Scalar, b: Scalar, weight: Scalar) -> Scalar:
    """The value a fraction `weight` of the way from a to b."""
    return a + weight * (b - a)


def _tensors(a: Scalar, b: Scalar) -> tuple[Tensor, Tensor]:
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    return (
        a if isinstance(a, Tensor) else torch.full_like(like, a),
        b if isinstance(b, Tensor) else torch.full_like(like, b),
    )

"""The ops of the language for bounded tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuzz.bounded_matrices import MATRIX_MEANINGS
from fuzz.bounded_tensors import (
    DOUBLE,
    BoundedTensor,
    UncertainMask,
    ZeroProduct,
    compare,
    comparison_bound,
    is_exact,
    is_zero,
    lift,
    lift_mask,
    operand_bound,
    result_in_range,
    unit_selected_by,
)
from optgen.ir.meanings import MEANINGS
from optgen.ir.ops import MAXIMA, OPS, RANDOM_OPS, STORAGE_OPS

Meaning = Callable[..., Any]
PLAIN = dict(MEANINGS)
"""The ops' meanings on plain tensors, without bounds."""


STORE = {d: f"store {d}" for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
"""Ops of this oracle only. A bound covers both the value and the value rounded to the dtype."""


def _stored(dtype: torch.dtype, x: Any) -> BoundedTensor:
    x = lift(x)
    rounded = x.v.to(dtype).double()
    change = (torch.finfo(dtype).eps * x.v.abs()).maximum((rounded - x.v).abs())
    e = x.e + torch.where(rounded == x.v, 0.0, change)
    return result_in_range(x.v, e, x.ok, x.eps)


@contextmanager
def bounded_meanings(has_coarse_orthogonalize: bool = False) -> Iterator[None]:
    """Give the ops their meaning on bounded tensors.

    With `has_coarse_orthogonalize` the result of `orthogonalize` is not comparable, because
    lowerings compute it in 16 bits.
    """
    store_ops = {name: replace(OPS["copy"], name=name) for name in STORE.values()}
    bounded = dict(BOUNDED)
    bounded |= {name: functools.partial(_stored, dtype) for dtype, name in STORE.items()}
    if has_coarse_orthogonalize:
        bounded["orthogonalize"] = _orthogonalize_not_comparable
    with mock.patch.dict(OPS, store_ops), mock.patch.dict(MEANINGS, bounded):
        yield


def _binary(word: str, bound: Callable[..., Tensor], a: Any, b: Any) -> BoundedTensor:
    a, b = lift(a), lift(b)
    v, eps = PLAIN[word](a.v, b.v), max(a.eps, b.eps)
    ok = a.ok & b.ok
    if is_exact(a, b, v):
        return result_in_range(v, a.e, ok, eps)
    result = result_in_range(v, bound(a, b, v, eps) + 2 * eps * v.abs(), ok, eps)
    if word == "*" and any(is_zero(x) for x in (a, b)):
        return ZeroProduct(result.v, result.e, result.ok, eps)
    return result


def _bound_of_sum(a: BoundedTensor, b: BoundedTensor, v: Tensor, eps: float) -> Tensor:
    return operand_bound(a, eps) + operand_bound(b, eps)


def _bound_of_product(a: BoundedTensor, b: BoundedTensor, v: Tensor, eps: float) -> Tensor:
    """Return a product's bound.

    A lowering may compute a blend b * x + (1 - b) * y as x + (1 - b) * (y - x). Then x itself is
    rounded.
    """
    ea, eb = operand_bound(a, eps), operand_bound(b, eps)
    e = ea * b.v.abs() + eb * a.v.abs() + ea * eb
    for weight, x in ((a, b), (b, a)):
        if weight.ndim == 0 and 0 <= float(weight.v) <= 1:
            e = e + eps * x.v.abs()
    return e


def _bound_of_quotient(a: BoundedTensor, b: BoundedTensor, v: Tensor, eps: float) -> Tensor:
    """Return a quotient's bound; it is infinite if the divisor may be 0."""
    ea, eb = operand_bound(a, eps), operand_bound(b, eps)
    least = b.v.abs() - eb
    return torch.where(least > 0, (ea + v.abs() * eb) / least, torch.inf)


def _power(a: Any, b: Any) -> BoundedTensor:
    """Return a power, bounded by its values at the ends of both operands' intervals.

    A whole exponent is exact.
    """
    a, b = lift(a), lift(b)
    v, eps = PLAIN["**"](a.v, b.v), max(a.eps, b.eps)
    ok = a.ok & b.ok
    if is_exact(a, b, v) and float(b.v) % 1 == 0 and float(b.v) >= 0:
        return result_in_range(v, a.e, ok, eps)
    ea = operand_bound(a, eps)
    is_whole = b.ndim == 0 and not b.e and float(b.v) % 1 == 0
    eb = torch.zeros_like(b.v) if is_whole else operand_bound(b, eps)
    e = torch.zeros_like(v)
    if is_whole and float(b.v) < 0:  # the interval of the base may contain 0
        ok = ok & (a.v.abs() > ea)
    for x in (a.v - ea, a.v + ea):
        for y in (b.v,) if is_whole else (b.v - eb, b.v + eb):
            e = e.maximum((PLAIN["**"](x, y) - v).abs())
    result = result_in_range(v, e.nan_to_num(torch.inf) + 4 * eps * v.abs(), ok, eps)
    result.are_squares = is_whole and float(b.v) % 2 == 0
    return result


def _remainder(a: Any, b: Any) -> BoundedTensor:
    """Return a remainder; not comparable if rounding may move the quotient past a whole number."""
    a, b = lift(a), lift(b)
    v, eps, ok = PLAIN["%"](a.v, b.v), max(a.eps, b.eps), a.ok & b.ok
    if is_exact(a, b, v):
        return result_in_range(v, a.e, ok, eps)
    ea, eb = comparison_bound(a, eps), comparison_bound(b, eps)
    quotient = a.v / b.v
    quotient_error = (ea + quotient.abs() * eb) / b.v.abs() + 2 * eps * quotient.abs()
    distance = (quotient - quotient.round()).abs()  # to a whole number
    is_sure = (distance > quotient_error) | (quotient_error == 0)
    e = operand_bound(a, eps) + (quotient.abs() + 1) * operand_bound(b, eps) + 2 * eps * v.abs()
    return result_in_range(v, e, ok & is_sure, eps)


def _monotonic(word: str, x: Any) -> BoundedTensor:
    """Return a monotonic function's value, bounded by those at the operand interval's ends."""
    x = lift(x)
    v, e = PLAIN[word](x.v), operand_bound(x, x.eps)
    lowest = (x.v - e).clamp(min=0) if x.are_squares else x.v - e
    low, high = PLAIN[word](lowest), PLAIN[word](x.v + e)
    change = (low - v).abs().maximum((high - v).abs())
    return result_in_range(
        v, change.nan_to_num(torch.inf, torch.inf) + 2 * x.eps * v.abs(), x.ok, x.eps
    )


def _sine_or_cosine(word: str, x: Any) -> BoundedTensor:
    """Return a sine or a cosine; its error is at most the operand's."""
    x = lift(x)
    v = PLAIN[word](x.v)
    return result_in_range(v, operand_bound(x, x.eps) + 2 * x.eps * v.abs(), x.ok, x.eps)


def _angle(y: Any, x: Any) -> BoundedTensor:
    """Return an angle; it is not comparable near the origin and near the negative x axis."""
    y, x = lift(y), lift(x)
    v, eps = PLAIN["atan2"](y.v, x.v), max(y.eps, x.eps)
    ey, ex = operand_bound(y, eps), operand_bound(x, eps)
    radius, radius_error = y.v.hypot(x.v), ey.hypot(ex)
    is_sure = (radius > 2 * radius_error) & ((y.v.abs() > ey) | (x.v > ex))
    e = (ey * x.v.abs() + ex * y.v.abs()) / radius / (radius - radius_error) + 2 * eps * v.abs()
    return result_in_range(v, e, y.ok & x.ok & is_sure, eps)


def _whole_number(word: str, x: Any) -> BoundedTensor:
    """Return a whole number; not comparable if the operand interval's ends give different ones."""
    x = lift(x)
    v, is_sure = PLAIN[word](x.v), PLAIN[word](x.v - x.e) == PLAIN[word](x.v + x.e)
    return result_in_range(v, torch.zeros_like(v), x.ok & is_sure, x.eps)


def _rounded_to_dtype(word: str, x: Any, eps: Any) -> BoundedTensor:
    """Return a rounding to the parameter's dtype, bounded at the operand interval's ends."""
    x, unit = lift(x), lift(eps).v
    v, e = PLAIN[word](x.v, unit), operand_bound(x, x.eps)
    ends = (PLAIN[word](x.v - e, unit), PLAIN[word](x.v + e, unit))
    change = (ends[0] - v).abs().maximum((ends[1] - v).abs())
    return result_in_range(v, change.nan_to_num(torch.inf, torch.inf), x.ok, x.eps)


def _rounded_at_random(x: Any, chance: Any, eps: Any) -> BoundedTensor:
    """Return a rounding at random, bounded by its values at both operand intervals' ends."""
    x, chance, unit = lift(x), lift(chance), lift(eps).v
    ex, ec = operand_bound(x, x.eps), operand_bound(chance, chance.eps)
    v, *ends = (
        PLAIN["rounded_at_random"](x.v + a * ex, chance.v + b * ec, unit)
        for a, b in ((0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
    )
    change = functools.reduce(torch.maximum, [(end - v).abs() for end in ends])
    return result_in_range(v, change.nan_to_num(torch.inf, torch.inf), x.ok & chance.ok, x.eps)


def _random(word: str, elements: Tensor, *numbers: Any) -> BoundedTensor:
    """Return random numbers, which are exact; not comparable if a number that seeds them is not."""
    bounded = [lift(number) for number in numbers]
    drawn = lift(PLAIN[word](elements, *(number.v for number in bounded)))
    ok = functools.reduce(torch.logical_and, [number.ok for number in bounded])
    return BoundedTensor(drawn.v, torch.zeros_like(drawn.v), ok, drawn.eps)


def _with_largest_error(word: str, *xs: Any) -> BoundedTensor:
    """Return a function's value; its error is at most the largest error of the operands."""
    bounded = [lift(x) for x in xs]
    eps = max(x.eps for x in bounded)
    e = functools.reduce(torch.maximum, [comparison_bound(x, eps) for x in bounded])
    ok = functools.reduce(torch.logical_and, [x.ok for x in bounded])
    return result_in_range(PLAIN[word](*(x.v for x in bounded)), e, ok, eps)


def _sign(x: Any) -> BoundedTensor:
    x = lift(x)
    is_sure = (x.v.abs() > x.e) | (x.e == 0)
    return result_in_range(x.v.sign(), torch.zeros_like(x.v), x.ok & is_sure, x.eps)


def _where(condition: Any, a: Any, b: Any) -> BoundedTensor:
    """Return the selected value; if the condition is not sure, the bound covers both arms."""
    c, a, b = lift_mask(condition), lift(a), lift(b)
    eps = max(a.eps, b.eps, unit_selected_by(c.v) if not a.ndim and not b.ndim else DOUBLE)
    ea, eb = comparison_bound(a, eps), comparison_bound(b, eps)
    v = PLAIN["where"](c.v, a.v, b.v)
    both_arms = ea.maximum(eb) + (a.v - b.v).abs()
    e = torch.where(c.sure, torch.where(c.v, ea, eb), both_arms)
    ok = torch.where(c.sure, torch.where(c.v, a.ok, b.ok), a.ok & b.ok)
    return result_in_range(v, e, ok, eps)


def _lerp(a: Any, b: Any, w: Any) -> BoundedTensor:
    minus, times, plus = (MEANINGS[word] for word in "-*+")
    result: BoundedTensor = plus(a, times(w, minus(b, a)))
    return result


def _and(a: Any, b: Any) -> UncertainMask:
    a, b = lift_mask(a), lift_mask(b)
    is_false = (a.sure & ~a.v) | (b.sure & ~b.v)
    return UncertainMask(a.v & b.v, is_false | (a.sure & b.sure))


def _or(a: Any, b: Any) -> UncertainMask:
    a, b = lift_mask(a), lift_mask(b)
    is_true = (a.sure & a.v) | (b.sure & b.v)
    return UncertainMask(a.v | b.v, is_true | (a.sure & b.sure))


def _not(a: Any) -> UncertainMask:
    a = lift_mask(a)
    return UncertainMask(~a.v, a.sure)


def _sum_or_mean(word: str, x: Any) -> BoundedTensor:
    """Return a sum or a mean; all bounds add up, and a lowering may add in any order."""
    x = lift(x)
    v = PLAIN[word](x.v)
    zeros = torch.zeros_like(x.v)
    num_terms = x.numel() / max(v.numel(), 1) + 2
    e = PLAIN[word](zeros + x.e) + x.eps * num_terms * PLAIN[word](x.v.abs())
    ok = PLAIN[word](((zeros == 0) & ~x.ok).double()) == 0
    result = result_in_range(v, e, ok, x.eps)
    result.are_squares = x.are_squares
    return result


def _norm(word: str, x: Any) -> BoundedTensor:
    reduction = word.replace("rms", "mean").replace("norm", "sum")
    root: BoundedTensor = MEANINGS["sqrt"](MEANINGS[reduction](MEANINGS["*"](x, x)))
    return root


def _max_abs(word: str, x: Any) -> BoundedTensor:
    """Return a largest magnitude; its error is at most the largest error of an element."""
    x = lift(x)
    zeros = torch.zeros_like(x.v)
    ok = PLAIN[word](((zeros == 0) & ~x.ok).double()) == 0
    return result_in_range(PLAIN[word](x.v), PLAIN[word](zeros + x.e), ok, x.eps)


def _group_sum(*numbers: Any) -> BoundedTensor:
    numbers = tuple(map(lift, numbers))
    result: BoundedTensor = functools.reduce(
        functools.partial(_binary, "+", _bound_of_sum), numbers
    )
    result.are_squares = all(number.are_squares for number in numbers)
    return result


def _group_maximum(*numbers: Any) -> BoundedTensor:
    return functools.reduce(functools.partial(_with_largest_error, "maximum"), numbers)


def _orthogonalize(
    x: Any, coefficients: Any, steps: Any, eps: Any, divisor: str = "norm", _dtype: Any = None
) -> BoundedTensor:
    """Return the result, bounded by 100 times its largest change for four changed operands."""
    x, steps, least = lift(x), lift(steps), lift(eps)
    poly = tuple(lift(c).v for c in coefficients)
    options = (poly, steps.v, least.v, divisor)
    orthogonalize = PLAIN["orthogonalize"]
    v = orthogonalize(x.v, *options)
    spread = (
        operand_bound(x, x.eps) + x.eps * x.v.abs().amax((-2, -1), keepdim=True)
    ) * torch.ones(())
    change = torch.zeros_like(v)
    for sign in (1, -1):
        for offset in (0, 1):
            signs = torch.ones_like(x.v).flatten()
            signs[offset::2] = -1
            other = orthogonalize(x.v + sign * spread * signs.view(x.shape), *options)
            change = change.maximum((other - v).abs())
    e = 100 * (change + x.eps * v.abs()).amax((-2, -1), keepdim=True) + torch.zeros_like(v)
    ok = x.ok.expand(v.shape).all(-1, keepdim=True).all(-2, keepdim=True)
    return result_in_range(v, e.nan_to_num(torch.inf), ok, x.eps)


def _orthogonalize_not_comparable(
    x: Any, coefficients: Any, steps: Any, eps: Any, divisor: str = "norm", _dtype: Any = None
) -> BoundedTensor:
    x = lift(x)
    poly = tuple(lift(c).v for c in coefficients)
    v = PLAIN["orthogonalize"](x.v, poly, lift(steps).v, lift(eps).v, divisor)
    return BoundedTensor(v, torch.zeros_like(v), torch.zeros_like(v, dtype=torch.bool), x.eps)


def _comparison(word: str, a: Any, b: Any) -> Any:
    if any(isinstance(x, str | None) for x in (a, b)):  # texts of a `choice`, or None
        return PLAIN[word](a, b)
    return compare(PLAIN[word], a, b)


def _meanings() -> dict[str, Meaning]:
    part = functools.partial
    meanings: dict[str, Meaning] = {
        "+": part(_binary, "+", _bound_of_sum),
        "-": part(_binary, "-", _bound_of_sum),
        "*": part(_binary, "*", _bound_of_product),
        "/": part(_binary, "/", _bound_of_quotient),
        "**": _power,
        "%": _remainder,
        "sign": _sign,
        "atan2": _angle,
        "where": _where,
        "lerp": _lerp,
        "and": _and,
        "or": _or,
        "not": _not,
        **dict.fromkeys(("group_sum", "all_sum"), _group_sum),
        **dict.fromkeys(("group_max", "all_max"), _group_maximum),
        "orthogonalize": _orthogonalize,
    }
    meanings |= {word: part(_comparison, word) for word in ("<", "<=", ">", ">=", "==", "!=")}
    meanings |= {word: part(_monotonic, word) for word in ("sqrt", "exp", "log", "tanh")}
    meanings |= {word: part(_sine_or_cosine, word) for word in ("sin", "cos")}
    meanings |= {word: part(_whole_number, word) for word in ("floor", "ceil", "round")}
    simple = ("neg", "abs", "maximum", "minimum", "clamp")
    meanings |= {word: part(_with_largest_error, word) for word in simple}
    meanings |= {word: part(_rounded_to_dtype, word) for word in STORAGE_OPS}
    meanings |= {"rounded_at_random": _rounded_at_random}
    meanings |= {word: part(_random, word) for word in RANDOM_OPS}
    meanings |= {word: part(_max_abs, word) for word in MAXIMA}
    sums = ("sum", "mean", "row_sum", "row_mean", "col_sum", "col_mean")
    meanings |= {word: part(_sum_or_mean, word) for word in sums}
    norms = ("norm", "rms", "row_norm", "row_rms", "col_norm", "col_rms")
    return meanings | {word: part(_norm, word) for word in norms} | MATRIX_MEANINGS


BOUNDED = _meanings()

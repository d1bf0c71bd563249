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
    as_compared,
    compare,
    in_range,
    is_exact,
    is_zero,
    lift,
    lift_mask,
    operand,
    unit_beside,
)
from optgen.ir.ops import MAXIMA, OPS, RANDOM_OPS, STORAGE_OPS

Meaning = Callable[..., Any]
PLAIN = {name: word.meaning for name, word in OPS.items()}


STORE = {d: f"store {d}" for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
"""Ops of this oracle only. A bound covers both the value and the value rounded to the dtype."""


def _stored(dtype: torch.dtype, x: Any) -> BoundedTensor:
    x = lift(x)
    rounded = x.v.to(dtype).double()
    moved = (torch.finfo(dtype).eps * x.v.abs()).maximum((rounded - x.v).abs())
    e = x.e + torch.where(rounded == x.v, 0.0, moved)
    return in_range(x.v, e, x.ok, x.eps)


@contextmanager
def bounded_meanings(coarse_matrices: bool = False) -> Iterator[None]:
    """Give the ops their meaning on bounded tensors.

    With `coarse_matrices` the result of `orthogonalize` is unknown, because it computes in 16 bits.
    """
    words = {name: replace(OPS[name], meaning=meaning) for name, meaning in MEANINGS.items()}
    for dtype, name in STORE.items():
        words[name] = replace(OPS["copy"], name=name, meaning=functools.partial(_stored, dtype))
    if coarse_matrices:
        words["orthogonalize"] = replace(OPS["orthogonalize"], meaning=_unknown)
    with mock.patch.dict(OPS, words):
        yield


def _binary(word: str, bound: Callable[..., Tensor], a: Any, b: Any) -> BoundedTensor:
    a, b = lift(a), lift(b)
    v, eps = PLAIN[word](a.v, b.v), max(a.eps, b.eps)
    ok = a.ok & b.ok
    if is_exact(a, b, v):
        return in_range(v, a.e, ok, eps)
    result = in_range(v, bound(a, b, v, eps) + 2 * eps * v.abs(), ok, eps)
    if word == "*" and any(is_zero(x) for x in (a, b)):
        return ZeroProduct(result.v, result.e, result.ok, eps)
    return result


def _sum(a: BoundedTensor, b: BoundedTensor, v: Tensor, eps: float) -> Tensor:
    return operand(a, eps) + operand(b, eps)


def _product(a: BoundedTensor, b: BoundedTensor, v: Tensor, eps: float) -> Tensor:
    """Return a product's bound.

    A lowering may compute a blend b * x + (1 - b) * y as x + (1 - b) * (y - x). Then x itself is
    rounded.
    """
    ea, eb = operand(a, eps), operand(b, eps)
    e = ea * b.v.abs() + eb * a.v.abs() + ea * eb
    for weight, x in ((a, b), (b, a)):
        if weight.ndim == 0 and 0 <= float(weight.v) <= 1:
            e = e + eps * x.v.abs()
    return e


def _quotient(a: BoundedTensor, b: BoundedTensor, v: Tensor, eps: float) -> Tensor:
    """Return a quotient's bound; it is infinite if the divisor may be 0."""
    ea, eb = operand(a, eps), operand(b, eps)
    least = b.v.abs() - eb
    return torch.where(least > 0, (ea + v.abs() * eb) / least, torch.inf)


def _power(a: Any, b: Any) -> BoundedTensor:
    """Return a power; the bounds of base and exponent count, but a whole exponent is exact."""
    a, b = lift(a), lift(b)
    v, eps = PLAIN["**"](a.v, b.v), max(a.eps, b.eps)
    ok = a.ok & b.ok
    if is_exact(a, b, v) and float(b.v) % 1 == 0 and float(b.v) >= 0:
        return in_range(v, a.e, ok, eps)
    ea = operand(a, eps)
    whole = b.ndim == 0 and not b.e and float(b.v) % 1 == 0
    eb = torch.zeros_like(b.v) if whole else operand(b, eps)
    e = torch.zeros_like(v)
    if whole and float(b.v) < 0:  # the interval of the base may contain 0
        ok = ok & (a.v.abs() > ea)
    for x in (a.v - ea, a.v + ea):
        for y in (b.v,) if whole else (b.v - eb, b.v + eb):
            e = e.maximum((PLAIN["**"](x, y) - v).abs())
    return in_range(v, e.nan_to_num(torch.inf) + 4 * eps * v.abs(), ok, eps)


def _remainder(a: Any, b: Any) -> BoundedTensor:
    """Return a remainder; it is unknown if the quotient may be on either side of a whole number."""
    a, b = lift(a), lift(b)
    v, eps, ok = PLAIN["%"](a.v, b.v), max(a.eps, b.eps), a.ok & b.ok
    if is_exact(a, b, v):
        return in_range(v, a.e, ok, eps)
    ea, eb = as_compared(a, eps), as_compared(b, eps)
    q = a.v / b.v
    off = (ea + q.abs() * eb) / b.v.abs() + 2 * eps * q.abs()
    sure = ((q - q.round()).abs() > off) | (off == 0)
    e = operand(a, eps) + (q.abs() + 1) * operand(b, eps) + 2 * eps * v.abs()
    return in_range(v, e, ok & sure, eps)


def _monotonic(word: str, x: Any) -> BoundedTensor:
    """Return a monotonic function's value, bounded by its values at the operand's ends."""
    x = lift(x)
    v, e = PLAIN[word](x.v), operand(x, x.eps)
    low, high = PLAIN[word](x.v - e), PLAIN[word](x.v + e)
    moved = (low - v).abs().maximum((high - v).abs())
    return in_range(v, moved.nan_to_num(torch.inf, torch.inf) + 2 * x.eps * v.abs(), x.ok, x.eps)


def _wave(word: str, x: Any) -> BoundedTensor:
    """Return a sine or a cosine; its error is at most the operand's."""
    x = lift(x)
    v = PLAIN[word](x.v)
    return in_range(v, operand(x, x.eps) + 2 * x.eps * v.abs(), x.ok, x.eps)


def _angle(y: Any, x: Any) -> BoundedTensor:
    """Return an angle; it is unknown near the origin and near the negative x axis."""
    y, x = lift(y), lift(x)
    v, eps = PLAIN["atan2"](y.v, x.v), max(y.eps, x.eps)
    ey, ex = operand(y, eps), operand(x, eps)
    far, near = y.v.hypot(x.v), ey.hypot(ex)
    sure = (far > 2 * near) & ((y.v.abs() > ey) | (x.v > ex))
    e = (ey * x.v.abs() + ex * y.v.abs()) / far / (far - near) + 2 * eps * v.abs()
    return in_range(v, e, y.ok & x.ok & sure, eps)


def _whole_number(word: str, x: Any) -> BoundedTensor:
    """Return a whole number; it is unknown if the operand's bound reaches another one."""
    x = lift(x)
    v, sure = PLAIN[word](x.v), PLAIN[word](x.v - x.e) == PLAIN[word](x.v + x.e)
    return in_range(v, torch.zeros_like(v), x.ok & sure, x.eps)


def _rounded_to_dtype(word: str, x: Any, eps: Any) -> BoundedTensor:
    """Return a rounding to the parameter's dtype; its bound comes from the operand's interval."""
    x, unit = lift(x), lift(eps).v
    v, e = PLAIN[word](x.v, unit), operand(x, x.eps)
    ends = (PLAIN[word](x.v - e, unit), PLAIN[word](x.v + e, unit))
    moved = (ends[0] - v).abs().maximum((ends[1] - v).abs())
    return in_range(v, moved.nan_to_num(torch.inf, torch.inf), x.ok, x.eps)


def _rounded_at_random(x: Any, chance: Any, eps: Any) -> BoundedTensor:
    """Return a rounding at random; it is monotonic in both operands, so their ends bound it."""
    x, chance, unit = lift(x), lift(chance), lift(eps).v
    ex, ec = operand(x, x.eps), operand(chance, chance.eps)
    v, *ends = (
        PLAIN["rounded_at_random"](x.v + a * ex, chance.v + b * ec, unit)
        for a, b in ((0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
    )
    moved = functools.reduce(torch.maximum, [(end - v).abs() for end in ends])
    return in_range(v, moved.nan_to_num(torch.inf, torch.inf), x.ok & chance.ok, x.eps)


def _random(word: str, elements: Tensor, *numbers: Any) -> BoundedTensor:
    """Return random numbers, which are exact; they are unknown if rounding may change their key."""
    bounded = [lift(number) for number in numbers]
    drawn = lift(PLAIN[word](elements, *(number.v for number in bounded)))
    ok = functools.reduce(torch.logical_and, [number.ok for number in bounded])
    return BoundedTensor(drawn.v, torch.zeros_like(drawn.v), ok, drawn.eps)


def _with_largest_error(word: str, *xs: Any) -> BoundedTensor:
    """Return a function's value; its error is at most the largest error of the operands."""
    bounded = [lift(x) for x in xs]
    eps = max(x.eps for x in bounded)
    e = functools.reduce(torch.maximum, [as_compared(x, eps) for x in bounded])
    ok = functools.reduce(torch.logical_and, [x.ok for x in bounded])
    return in_range(PLAIN[word](*(x.v for x in bounded)), e, ok, eps)


def _sign(x: Any) -> BoundedTensor:
    x = lift(x)
    sure = (x.v.abs() > x.e) | (x.e == 0)
    return in_range(x.v.sign(), torch.zeros_like(x.v), x.ok & sure, x.eps)


def _where(condition: Any, a: Any, b: Any) -> BoundedTensor:
    """Return the selected value; if the condition is not sure, the bound covers both arms."""
    c, a, b = lift_mask(condition), lift(a), lift(b)
    eps = max(a.eps, b.eps, unit_beside(c.v) if not a.ndim and not b.ndim else DOUBLE)
    ea, eb = as_compared(a, eps), as_compared(b, eps)
    v = PLAIN["where"](c.v, a.v, b.v)
    either = ea.maximum(eb) + (a.v - b.v).abs()
    e = torch.where(c.sure, torch.where(c.v, ea, eb), either)
    ok = torch.where(c.sure, torch.where(c.v, a.ok, b.ok), a.ok & b.ok)
    return in_range(v, e, ok, eps)


def _lerp(a: Any, b: Any, w: Any) -> BoundedTensor:
    minus, times, plus = (MEANINGS[word] for word in "-*+")
    moved: BoundedTensor = plus(a, times(w, minus(b, a)))
    return moved


def _and(a: Any, b: Any) -> UncertainMask:
    a, b = lift_mask(a), lift_mask(b)
    no = (a.sure & ~a.v) | (b.sure & ~b.v)
    return UncertainMask(a.v & b.v, no | (a.sure & b.sure))


def _or(a: Any, b: Any) -> UncertainMask:
    a, b = lift_mask(a), lift_mask(b)
    yes = (a.sure & a.v) | (b.sure & b.v)
    return UncertainMask(a.v | b.v, yes | (a.sure & b.sure))


def _not(a: Any) -> UncertainMask:
    a = lift_mask(a)
    return UncertainMask(~a.v, a.sure)


def _sum_or_mean(word: str, x: Any) -> BoundedTensor:
    """Return a sum or a mean; all bounds add up, and a lowering may add in any order."""
    x = lift(x)
    v = PLAIN[word](x.v)
    whole = torch.zeros_like(x.v)
    terms = x.numel() / max(v.numel(), 1) + 2
    e = PLAIN[word](whole + x.e) + x.eps * terms * PLAIN[word](x.v.abs())
    ok = PLAIN[word](((whole == 0) & ~x.ok).double()) == 0
    return in_range(v, e, ok, x.eps)


def _norm(word: str, x: Any) -> BoundedTensor:
    reduced = word.replace("rms", "mean").replace("norm", "sum")
    root: BoundedTensor = MEANINGS["sqrt"](MEANINGS[reduced](MEANINGS["*"](x, x)))
    return root


def _max_abs(word: str, x: Any) -> BoundedTensor:
    """Return a largest magnitude; its error is at most the largest error of an element."""
    x = lift(x)
    whole = torch.zeros_like(x.v)
    ok = PLAIN[word](((whole == 0) & ~x.ok).double()) == 0
    return in_range(PLAIN[word](x.v), PLAIN[word](whole + x.e), ok, x.eps)


def _group_sum(*numbers: Any) -> BoundedTensor:
    return functools.reduce(functools.partial(_binary, "+", _sum), numbers)


def _group_maximum(*numbers: Any) -> BoundedTensor:
    return functools.reduce(functools.partial(_with_largest_error, "maximum"), numbers)


def _orthogonalize(x: Any, coefficients: Any, steps: Any, eps: Any) -> BoundedTensor:
    """Return the result; four small changes of the operand tell how far an element may move."""
    x, steps, least = lift(x), lift(steps), lift(eps)
    poly = tuple(lift(c).v for c in coefficients)
    word = PLAIN["orthogonalize"]
    v = word(x.v, poly, steps.v, least.v)
    spread = (operand(x, x.eps) + x.eps * x.v.abs().amax((-2, -1), keepdim=True)) * torch.ones(())
    moved = torch.zeros_like(v)
    for sign in (1, -1):
        for first in (0, 1):
            signs = torch.ones_like(x.v).flatten()
            signs[first::2] = -1
            other = word(x.v + sign * spread * signs.view(x.shape), poly, steps.v, least.v)
            moved = moved.maximum((other - v).abs())
    e = 100 * (moved + x.eps * v.abs()).amax((-2, -1), keepdim=True) + torch.zeros_like(v)
    ok = x.ok.expand(v.shape).all(-1, keepdim=True).all(-2, keepdim=True)
    return in_range(v, e.nan_to_num(torch.inf), ok, x.eps)


def _unknown(x: Any, coefficients: Any, steps: Any, eps: Any) -> BoundedTensor:
    x = lift(x)
    poly = tuple(lift(c).v for c in coefficients)
    v = PLAIN["orthogonalize"](x.v, poly, lift(steps).v, lift(eps).v)
    return BoundedTensor(v, torch.zeros_like(v), torch.zeros_like(v, dtype=torch.bool), x.eps)


def _comparison(word: str, a: Any, b: Any) -> Any:
    if any(isinstance(x, str | None) for x in (a, b)):  # text choices
        return PLAIN[word](a, b)
    return compare(PLAIN[word], a, b)


def _meanings() -> dict[str, Meaning]:
    part = functools.partial
    meanings: dict[str, Meaning] = {
        "+": part(_binary, "+", _sum),
        "-": part(_binary, "-", _sum),
        "*": part(_binary, "*", _product),
        "/": part(_binary, "/", _quotient),
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
    meanings |= {word: part(_wave, word) for word in ("sin", "cos")}
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


MEANINGS = _meanings()

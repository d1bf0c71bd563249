"""PTX's fundamental types as NumPy's, and arithmetic that NumPy lacks: bfloat16 and fused sums.

The source of facts is the PTX ISA, sections "Fundamental Types", "Floating Point Instructions" and
"Half Precision Floating Point Instructions". Bits of NaNs are not modelled: any NaN is any NaN.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
"""One number for each lane; a 0-dimensional array is the same number in all lanes."""

BITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""Unsigned types by size in bytes. Registers hold bits."""


class Format(NamedTuple):
    """A type of PTX: how NumPy stores it, and its kind."""

    dtype: Any
    kind: str  # "bits", "signed", "unsigned", "float", "bfloat", "predicate", "pair"

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(np.dtype(self.dtype).itemsize)


FORMATS = {
    "pred": Format(np.bool_, "predicate"),
    "f16": Format(np.float16, "float"),
    "f32": Format(np.float32, "float"),
    "f64": Format(np.float64, "float"),
    "bf16": Format(np.uint16, "bfloat"),
    **{name: Format(np.uint32, "pair") for name in ("f16x2", "bf16x2", "s16x2", "u16x2")},
    **{f"b{8 * size}": Format(BITS[size], "bits") for size in BITS},
    **{f"u{8 * size}": Format(BITS[size], "unsigned") for size in BITS},
    **{f"s{8 * n}": Format(np.dtype(f"i{n}").type, "signed") for n in BITS},
}
"""Types by name."""


def halves(pairs: Lanes, kind: str) -> Lanes:
    """Return the numbers in pairs of 16 bits: shape [lanes, 2] or [2], the lower half first."""
    dtype = FORMATS[kind.removesuffix("x2")].dtype
    return np.ascontiguousarray(pairs).view(dtype).reshape(*pairs.shape, 2)


def widen_bfloat16(bits: Lanes) -> Lanes:
    """Return bfloat16 numbers, given as bits, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow_to_bfloat16(values: Lanes) -> Lanes:
    """Round float32 or float64 numbers to bfloat16, to the nearest, ties to even; return bits."""
    values = np.asarray(values)
    if values.dtype == np.float64:
        values = round_to_odd(values, np.float32)
    bits = values.view(np.uint32)
    half = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def round_to_odd(values: Lanes, dtype: Any) -> Lanes:
    """Round float64 numbers to odd: an inexact result has a last bit of 1.

    A second rounding to fewer bits, to the nearest, then gives the same as one rounding.
    """
    rounded = np.asarray(values.astype(dtype))
    back = rounded.astype(np.float64)
    inexact = np.isfinite(values) & (back != values)
    bits = rounded.view(BITS[rounded.itemsize])
    one = bits.dtype.type(1)
    bits = np.where(inexact & (np.abs(back) > np.abs(values)), bits - one, bits)
    return np.where(inexact, bits | one, bits).view(dtype)


def fused_multiply_add(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """Return x * y + z, rounded once; all of one dtype: float16, float32 or float64."""
    dtype = np.result_type(x, y, z)
    if dtype == np.float64:
        return _fma64(*np.broadcast_arrays(x, y, z))
    # A product of two floats is exact in float64, where the sum is rounded to odd.
    total, error = _two_sum(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64))
    return _nudge_to_odd(total, error).astype(dtype)


def _two_sum(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """Return the rounded sum of float64 numbers and its exact error (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _nudge_to_odd(total: Lanes, error: Lanes) -> Lanes:
    """Return total + error rounded to odd, where |error| is at most half a unit of `total`."""
    bits = np.asarray(total).view(np.uint64)
    is_even = (bits & np.uint64(1)) == 0
    moves = is_even & (error != 0) & np.isfinite(total) & np.isfinite(error)
    away = (error > 0) == (total > 0)
    step = np.where(away, np.int64(1), np.int64(-1)).view(np.uint64)
    return np.where(moves, bits + step, bits).view(np.float64)


_SPLITTER = 134217729.0  # 2**27 + 1


def _is_usual(x: Lanes) -> Lanes:
    """Tell whether no part of a product or sum of such numbers over- or underflows."""
    return (np.abs(x) > 2.0**-450) & (np.abs(x) < 2.0**450)


def _fma64(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """Compute with pairs of float64 numbers (Boldo and Melquiond, "Emulation of FMA", 2008)."""
    product = x * y
    product_error = _product_error(x, y, product)
    low, low_error = _two_sum(z, product_error)
    high, high_error = _two_sum(product, low)
    result = high + _nudge_to_odd(*_two_sum(low_error, high_error))
    has_zero = (x == 0) | (y == 0)
    result = np.where(has_zero, product + z, result)
    has_usual_factors = _is_usual(x) & _is_usual(y) & _is_usual(product)
    is_usual = has_zero | has_usual_factors & (_is_usual(z) | (z == 0))
    for lane in np.flatnonzero(~is_usual):
        result.flat[lane] = _exact_fma(x.flat[lane], y.flat[lane], z.flat[lane])
    return result


def _product_error(x: Lanes, y: Lanes, product: Lanes) -> Lanes:
    """Return x * y - product exactly (Dekker)."""
    x_part, y_part = _SPLITTER * x, _SPLITTER * y
    x_high = x_part - (x_part - x)
    y_high = y_part - (y_part - y)
    x_low, y_low = x - x_high, y - y_high
    return x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def _exact_fma(x: float, y: float, z: float) -> float:
    """Compute in fractions: for numbers near the ends of the range."""
    if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
        # The product of finite numbers adds nothing to an infinite z, even where it overflows.
        return float(z if np.isfinite(x) and np.isfinite(y) else x * y + z)
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return float(x * y + z) if x == 0 or y == 0 or z == 0 else 0.0
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float(np.copysign(np.inf, float(np.sign(exact.numerator))))

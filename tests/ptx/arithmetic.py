"""The meaning of arithmetic instructions: functions of NumPy arrays, by name without types.

The source of facts is the PTX ISA, sections "Integer Arithmetic Instructions", "Floating Point
Instructions", "Logic and Shift Instructions" and "Comparison and Selection Instructions". A name
that is not in a table is not known to the interpreter, for instance all that flush denormals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ptx.number_formats import (
    BITS,
    Lanes,
    fused_multiply_add,
    narrow_to_bfloat16,
    widen_bfloat16,
)

Meaning = Callable[..., Lanes]
"""A function of the operands, in the instruction's type; it returns the result."""


def _bits(x: Lanes) -> Lanes:
    return x.view(BITS[x.dtype.itemsize])


def _truncated_quotient(x: Lanes, y: Lanes) -> Lanes:
    """Divide whole numbers, rounding to 0; a division by 0 gives 0 (undefined in PTX)."""
    quotient = x // y
    remainder = x - quotient * y
    return (quotient + ((remainder != 0) & ((x < 0) != (y < 0)))).astype(x.dtype)


def _remainder(x: Lanes, y: Lanes) -> Lanes:
    return x - _truncated_quotient(x, y) * y


def _double_width(x: Lanes) -> Lanes:
    return x.astype(np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}"))


def _product_high(x: Lanes, y: Lanes) -> Lanes:
    wide = _double_width(x) * _double_width(y)
    return (wide >> wide.dtype.type(8 * x.dtype.itemsize)).astype(x.dtype)


def _shift_left(x: Lanes, amount: Lanes) -> Lanes:
    width = 8 * x.dtype.itemsize
    shifted = x << np.minimum(amount, width - 1).astype(x.dtype)
    return np.where(amount >= width, x.dtype.type(0), shifted)


def _shift_right(x: Lanes, amount: Lanes) -> Lanes:
    """Shift right; copies of the sign of a signed number come from the left."""
    width = 8 * x.dtype.itemsize
    shifted = x >> np.minimum(amount, width - 1).astype(x.dtype)
    return shifted if x.dtype.kind == "i" else np.where(amount >= width, x.dtype.type(0), shifted)


def _shift_pair_left(low: Lanes, high: Lanes, amount: Lanes) -> Lanes:
    """Shift two numbers of 32 bits as one of 64, by the amount modulo 32; return the upper half."""
    pair = (high.astype(np.uint64) << np.uint64(32)) | low
    return ((pair << (amount & 31).astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _shift_pair_right(low: Lanes, high: Lanes, amount: Lanes) -> Lanes:
    """Shift two numbers of 32 bits as one of 64, by the amount modulo 32; return the lower half."""
    pair = (high.astype(np.uint64) << np.uint64(32)) | low
    return (pair >> (amount & 31).astype(np.uint64)).astype(np.uint32)


def _extract_bits(x: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """Return a field of bits, with its sign if the type is signed."""
    width = 8 * x.dtype.itemsize
    position, length = position & 0xFF, length & 0xFF
    field_length = np.minimum(length, np.maximum(width - position.astype(np.int64), 0))
    left = (width - field_length - position.astype(np.int64)).clip(0, width - 1).astype(x.dtype)
    right = (width - field_length).clip(0, width - 1).astype(x.dtype)
    return np.where(field_length == 0, x.dtype.type(0), (x << left) >> right)


def _permute_bytes(x: Lanes, y: Lanes, selector: Lanes) -> Lanes:
    """Choose 4 of the 8 bytes of (y, x) by 4 bits each; the highest bit asks for the sign only."""
    both = x.astype(np.uint64) | (y.astype(np.uint64) << np.uint64(32))
    result = np.zeros(np.broadcast(both, selector).shape, np.uint32)
    for place in range(4):
        choice = (selector.astype(np.uint64) >> np.uint64(4 * place)) & np.uint64(15)
        byte = (both >> ((choice & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
        sign = (byte >> np.uint64(7)) * np.uint64(0xFF)
        byte = np.where(choice & np.uint64(8), sign, byte).astype(np.uint32)
        result |= byte << np.uint32(8 * place)
    return result


def _lookup3(x: Lanes, y: Lanes, z: Lanes, table: Lanes) -> Lanes:
    """Compute the logical function of three operands that a table of 8 bits gives."""
    result = np.zeros_like(x | y | z)
    for row in range(8):
        terms = (v if row >> bit & 1 else ~v for v, bit in ((x, 2), (y, 1), (z, 0)))
        if int(table) >> row & 1:
            first, second, third = terms
            result = result | (first & second & third)
    return result


def _count_leading_zeros(x: Lanes) -> Lanes:
    return np.uint32(8 * x.dtype.itemsize) - _bit_length(x)


def _bit_length(x: Lanes) -> Lanes:
    remaining, length = np.array(_bits(x)), np.zeros(x.shape, np.uint32)
    while remaining.any():
        length += remaining != 0
        remaining = remaining >> remaining.dtype.type(1)
    return length


def _smaller(x: Lanes, y: Lanes) -> Lanes:
    """Return the minimum, or the number beside a NaN; -0.0 is smaller than 0.0."""
    both_zero = (x == 0) & (y == 0)
    return np.where(both_zero, np.where(np.signbit(x), x, y), np.fmin(x, y))


def _larger(x: Lanes, y: Lanes) -> Lanes:
    both_zero = (x == 0) & (y == 0)
    return np.where(both_zero, np.where(np.signbit(x), y, x), np.fmax(x, y))


def _or_nan(function: Meaning) -> Meaning:
    """Return the function with a NaN as its result wherever an operand is NaN."""

    def meaning(x: Lanes, y: Lanes) -> Lanes:
        return np.where(np.isnan(x) | np.isnan(y), x.dtype.type(np.nan), function(x, y))

    return meaning


def _opposite(x: Lanes) -> Lanes:
    """Return -x, by its sign bit."""
    sign = BITS[x.dtype.itemsize](1 << (8 * x.dtype.itemsize - 1))
    return (_bits(x) ^ sign).view(x.dtype)


def _magnitude(x: Lanes) -> Lanes:
    sign = BITS[x.dtype.itemsize](1 << (8 * x.dtype.itemsize - 1))
    return (_bits(x) & ~sign).view(x.dtype)


def _with_sign_of(x: Lanes, y: Lanes) -> Lanes:
    return np.copysign(y, x)


def _approximate_reciprocal(x: Lanes) -> Lanes:
    """Return 1 / x as `rcp.approx.ftz.f64` does: the lower half of the bits is ignored, and 0."""
    upper = np.uint64(0xFFFFFFFF00000000)
    truncated = (x.view(np.uint64) & upper).view(np.float64)
    tiny = np.finfo(np.float64).tiny
    reciprocal = 1.0 / np.where(np.abs(truncated) < tiny, np.copysign(0.0, x), truncated)
    reciprocal = np.where(np.abs(reciprocal) < tiny, np.copysign(0.0, reciprocal), reciprocal)
    return (reciprocal.view(np.uint64) & upper).view(np.float64)


INTEGER: Mapping[str, Meaning] = {
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "mul.hi": _product_high,
    "mul.wide": lambda x, y: _double_width(x) * _double_width(y),
    "mad.lo": lambda x, y, z: x * y + z,
    "mad.wide": lambda x, y, z: _double_width(x) * _double_width(y) + z,
    "div": _truncated_quotient,
    "rem": _remainder,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "shl": _shift_left,
    "shr": _shift_right,
    "shf.l.wrap": _shift_pair_left,
    "shf.r.wrap": _shift_pair_right,
    "bfe": _extract_bits,
    "prmt": _permute_bytes,
    "lop3": _lookup3,
    "clz": _count_leading_zeros,
    "popc": lambda x: np.bitwise_count(x).astype(np.uint32),
    "selp": lambda x, y, chosen: np.where(chosen, x, y),
    "mov": lambda x: x,
    "cvta.local": lambda x: x,  # local memory has addresses from 0 on
}

PREDICATE: Mapping[str, Meaning] = {
    name: INTEGER[name] for name in ("and", "or", "xor", "not", "mov", "selp")
}

FLOAT: Mapping[str, Meaning] = {
    **dict.fromkeys(("add", "add.rn"), np.add),
    **dict.fromkeys(("sub", "sub.rn"), np.subtract),
    **dict.fromkeys(("mul", "mul.rn"), np.multiply),
    "fma.rn": fused_multiply_add,
    "div.rn": np.divide,
    "sqrt.rn": np.sqrt,
    "rcp.rn": lambda x: x.dtype.type(1) / x,
    "rcp.approx.ftz": _approximate_reciprocal,
    # Within 2 units of the last place on a GPU; exact here.
    "ex2.approx": lambda x: np.exp2(x.astype(np.float64)).astype(x.dtype),
    "lg2.approx": lambda x: np.log2(x.astype(np.float64)).astype(x.dtype),
    "min": _smaller,
    "max": _larger,
    "min.NaN": _or_nan(_smaller),
    "max.NaN": _or_nan(_larger),
    "neg": _opposite,
    "abs": _magnitude,
    "copysign": _with_sign_of,
    "testp.finite": np.isfinite,
    "testp.infinite": np.isinf,
    "testp.notanumber": np.isnan,
    "testp.number": lambda x: ~np.isnan(x),
    "selp": INTEGER["selp"],
    "mov": INTEGER["mov"],
}


def of_bfloat16(function: Meaning) -> Meaning:
    """Return a function of bfloat16 numbers, given as bits; the function itself takes float32."""
    return lambda *operands: function(*map(widen_bfloat16, operands))


def _exact_in_bfloat16(function: Meaning) -> Meaning:
    wide = of_bfloat16(function)
    return lambda *operands: narrow_to_bfloat16(wide(*operands))


BFLOAT: Mapping[str, Meaning] = {
    name: _exact_in_bfloat16(FLOAT[name])
    for name in ("min", "max", "min.NaN", "max.NaN", "neg", "abs")
}

OPERAND_TYPES: Mapping[str, tuple[str, ...]] = {
    "shl": ("", "u32"),
    "shr": ("", "u32"),
    "shf.l.wrap": ("", "", "u32"),
    "shf.r.wrap": ("", "", "u32"),
    "bfe": ("", "u32", "u32"),
    "lop3": ("", "", "", "u32"),
    "selp": ("", "", "pred"),
    "mad.wide": ("", "", "wide"),
}
"""Types of operands that are not of the instruction's type, ""."""

RESULT_TYPES: Mapping[str, str] = {
    "mul.wide": "wide",
    "mad.wide": "wide",
    "clz": "u32",
    "popc": "u32",
    **{f"testp.{name}": "pred" for name in ("finite", "infinite", "notanumber", "number")},
}
"""Types of results that are not of the instruction's type."""


def _is_nan(x: Lanes, y: Lanes) -> Lanes:
    return np.isnan(x) | np.isnan(y)


ORDERED: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": lambda x, y: (x != y) & ~_is_nan(x, y),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
"""Comparisons of floating-point numbers that are false for NaN."""

FLOAT_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    **ORDERED,
    "equ": lambda x, y: (x == y) | _is_nan(x, y),
    "neu": np.not_equal,
    "ltu": lambda x, y: ~(x >= y),
    "leu": lambda x, y: ~(x > y),
    "gtu": lambda x, y: ~(x <= y),
    "geu": lambda x, y: ~(x < y),
    "nan": _is_nan,
    "num": lambda x, y: ~_is_nan(x, y),
}

INTEGER_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    **dict.fromkeys(("lt", "lo"), np.less),
    **dict.fromkeys(("le", "ls"), np.less_equal),
    **dict.fromkeys(("gt", "hi"), np.greater),
    **dict.fromkeys(("ge", "hs"), np.greater_equal),
}

"""The meaning of `cvt`: conversions between PTX's types, each rounded once.

The source of facts is the PTX ISA, section "Data Movement and Conversion Instructions: cvt".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ptx.faults import Unsupported
from ptx.number_formats import (
    FORMATS,
    Lanes,
    narrow_to_bfloat16,
    widen_bfloat16,
)

_TO_WHOLE: Mapping[str, Callable[[Lanes], Lanes]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_PAIRS = {"bf16x2": "bf16", "f16x2": "f16"}


def conversion(name: str) -> tuple[tuple[str, ...], str, Callable[..., Lanes]]:
    """Return the operands' types, the result's type, and the function of a `cvt` instruction.

    Raises:
        Unsupported: The instruction is not one of those that are described here.
    """
    _, *modifiers, target, source = name.split(".")
    if target in _PAIRS and modifiers == ["rn"] and source == "f32":
        narrow = _function(_PAIRS[target], source, "rn", name)

        def narrow_pair(high: Lanes, low: Lanes) -> Lanes:
            upper, lower = (narrow(each).view(np.uint16).astype(np.uint32) for each in (high, low))
            return (upper << np.uint32(16)) | lower

        return (source, source), "b32", narrow_pair
    if target not in FORMATS or source not in FORMATS or len(modifiers) > 1:
        raise Unsupported(f"the instruction {name}")
    return (source,), target, _function(target, source, "".join(modifiers), name)


def _function(target: str, source: str, rounding: str, name: str) -> Callable[[Lanes], Lanes]:
    """Return the function that converts one number."""
    to, of = FORMATS[target], FORMATS[source]
    from_float, to_float = of.kind in ("float", "bfloat"), to.kind in ("float", "bfloat")
    if from_float and rounding in _TO_WHOLE:
        if to_float:
            if target != source or of.kind == "bfloat":
                raise Unsupported(f"the instruction {name}")
            return _TO_WHOLE[rounding]
        return lambda x: _to_whole(_widened(x, of.kind), _TO_WHOLE[rounding], to.dtype)
    widens = from_float and to_float and to.size > of.size
    if rounding != ("rn" if to_float and not widens else ""):
        raise Unsupported(f"the instruction {name}")
    if to.kind == "bfloat":
        if not from_float:
            raise Unsupported(f"the instruction {name}")
        return lambda x: narrow_to_bfloat16(_widened(x, of.kind))
    return lambda x: _widened(x, of.kind).astype(to.dtype)


def _widened(x: Lanes, kind: str) -> Lanes:
    return widen_bfloat16(x) if kind == "bfloat" else x


def _to_whole(x: Lanes, rounding: Callable[[Lanes], Lanes], dtype: type) -> Lanes:
    """Round to a whole number, clamped to the range of the type; NaN becomes 0."""
    info = np.iinfo(dtype)
    whole = rounding(x.astype(np.float64))
    converted = np.where(np.isnan(whole), 0.0, whole).clip(float(info.min), float(info.max))
    # The largest number of 64 bits is no float64: the next one above it is clamped here.
    at_end = converted >= float(info.max)
    return np.where(at_end, info.max, np.where(at_end, 0.0, converted).astype(dtype)).astype(dtype)

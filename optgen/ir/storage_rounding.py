"""Round numbers to the dtype in which a parameter is stored, for the evaluator.

A dtype is given by its machine epsilon, which is a property of the parameter that a rule can read.
Spacings of floating-point numbers are powers of two, so the arithmetic here is exact in float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class _Format(NamedTuple):
    """Floating-point format of a narrow dtype."""

    cast: str  # name of the tensor method that rounds to the nearest number, ties to even
    tiny: float  # the smallest normal number
    largest: float  # the largest finite number


_FORMATS = {
    2.0**-7: _Format("bfloat16", 2.0**-126, 2.0**128 - 2.0**120),
    2.0**-10: _Format("half", 2.0**-14, 65504.0),
    2.0**-23: _Format("float", 2.0**-126, 2.0**128 - 2.0**104),
}
"""The formats that are narrower than float64, by their machine epsilon."""


def rounded(x: Any, eps: Any) -> Any:
    """Return the nearest numbers that the format holds, ties to even."""
    narrow_format = _FORMATS.get(eps.item())
    return getattr(x, narrow_format.cast)().to(x.dtype) if narrow_format else x.clone()


def rounded_down(x: Any, eps: Any) -> Any:
    """Return the largest numbers that the format holds and that are not above x."""
    narrow_format = _FORMATS.get(eps.item())
    if narrow_format is None:
        return x.clone()
    exponent = x.abs().clamp(narrow_format.tiny, narrow_format.largest).frexp().exponent - 1
    spacing = x.new_tensor(2.0).pow(exponent) * eps
    down = ((x / spacing).floor() * spacing).clamp(max=narrow_format.largest)
    down = down.where(down >= -narrow_format.largest, -math.inf)
    return down.where(x.isfinite(), x)


def rounded_up(x: Any, eps: Any) -> Any:
    """Return the smallest numbers that the format holds and that are not below x."""
    return -rounded_down(-x, eps)


def rounded_at_random(x: Any, chance: Any, eps: Any) -> Any:
    """Return x rounded, by chance, to one of its two neighbours in the format.

    For the neighbours near <= |x| <= far, |x| becomes far where
    `chance * (far - near) < |x| - near`, and near elsewhere. A finite number beyond the largest
    becomes the largest.
    """
    near, far = rounded_down(x.abs(), eps), rounded_up(x.abs(), eps)
    is_far = chance * (far - near) < x.abs() - near
    return far.where(is_far & (far != math.inf), near).copysign(x)

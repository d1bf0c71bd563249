"""Round numbers to the dtype in which a parameter is stored, for the evaluator.

A dtype is given by its machine epsilon, which is a property of the parameter that a rule can read.
Spacings of floating-point numbers are powers of two, so the arithmetic here is exact in float64.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from optgen.contract.numbers import FORMATS

_NARROW_DTYPES = {f.eps: getattr(torch, name) for name, f in FORMATS.items() if name != "float64"}
"""The dtypes that are narrower than float64, by their machine epsilon."""


def rounded(x: Any, eps: Any) -> Any:
    """Return the nearest numbers that the format holds, ties to even."""
    dtype = _NARROW_DTYPES.get(eps.item())
    return x.to(dtype).to(x.dtype) if dtype else x.clone()


def rounded_down(x: Any, eps: Any) -> Any:
    """Return the largest numbers that the format holds and that are not above x."""
    dtype = _NARROW_DTYPES.get(eps.item())
    if dtype is None:
        return x.clone()
    _, tiny, largest = FORMATS[str(dtype).removeprefix("torch.")]
    exponent = x.abs().clamp(tiny, largest).frexp().exponent - 1
    spacing = x.new_tensor(2.0).pow(exponent) * eps
    down = ((x / spacing).floor() * spacing).clamp(max=largest)
    down = down.where(down >= -largest, -math.inf)
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

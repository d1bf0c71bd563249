"""Round numbers as they are stored, for the evaluator: the definitions, computed in float64.

A parameter is stored in a dtype, which is given by its machine epsilon, a property of the parameter
that a rule can read. Spacings of floating-point numbers are powers of two, so the arithmetic here
is exact in float64.

A quantized state is stored in blocks. Consecutive elements in memory form a block. A block is
stored as its scale, which is the largest magnitude in it, and a code for each element. A code is a
sign and a number c, from 0 to 127 if it has 8 bits, which stands for a share of the largest
magnitude.

* "linear": the share is c / 127.
* "dynamic": shares are closer together the smaller they are. Let L(2**e * (1 + f)) = e + f for
  whole e and 0 <= f < 1, which is log2 with a straight line from one power of 2 to the next. The
  share u of a code c above 0 has L(u) = 4 * L((c + 1) / 128). So code 127 is 1, code 1 is 2**-24,
  and code 0 is 0.
* "e4m3": the share is a number of the format float8_e4m3fn, divided by its largest number, 448.
  Such a number has 4 significant bits, and is a multiple of 2**-9. The scale is stored divided by
  448.

* "dynamic4": codes have 4 bits. If no value of a block has its sign bit set, a code c from 0 to 15
  has the share c / 15. Otherwise a code is a sign and a number c from 0 to 7, with shares as in
  "dynamic": L(u) = 4 * L((c + 1) / 8).

A value gets the nearest code: c is rounded to an integer, ties to even (of c + 1 if L gives the
shares; to an even last bit of the number if "e4m3").
There is one exception: if no value of a block has its sign bit set, c is at least 1 for values that
are not 0. So a mean of squares, by which a rule divides, does not become 0.

A block whose scale is below 2**-100 becomes zeros. If the scale is 2**126 or more, infinite or NaN,
the whole block becomes NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from optgen.contract.constants import FORMATS, SMALLEST_SCALE, TOO_LARGE_SCALE

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


def quantized(values: Tensor, block_size: int, code_map: str, min_elements: int = 0) -> Tensor:
    """Return values as a quantized state holds them, in float32.

    Tensors of fewer than `min_elements` elements are rounded to float32 only.
    """
    values = values.to(torch.float32)
    if values.numel() < min_elements or not values.numel():
        return values
    flat = values.double().flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block_size)).view(-1, block_size)
    scales = blocks.abs().amax(dim=1, keepdim=True)
    shares = blocks.abs() / scales
    has_signs = blocks.signbit().any(dim=1, keepdim=True)
    nearest = nearest_shares(shares, code_map, has_signs, ~has_signs & (blocks > 0))
    rounded = torch.copysign(nearest * scales, blocks)
    rounded = torch.where(scales < SMALLEST_SCALE, 0.0, rounded)
    rounded = torch.where(scales < TOO_LARGE_SCALE, rounded, torch.nan)
    return rounded.flatten()[: len(flat)].view(values.shape).to(torch.float32)


def nearest_shares(
    shares: Tensor, code_map: str, has_signs: Tensor, not_zero: Tensor | float = 0.0
) -> Tensor:
    """Return the nearest shares that codes stand for. Where `not_zero`, code 0 is left out.

    `has_signs` tells whether a value of the share's block has its sign bit set.
    """
    not_zero = torch.as_tensor(not_zero).to(shares)
    if code_map == "linear":
        return torch.maximum((shares * 127).round(), not_zero) / 127
    if code_map == "e4m3":
        spacings = torch.ldexp(torch.ones_like(shares), (shares * 448).frexp().exponent - 4)
        spacings = spacings.clamp(min=2.0**-9)
        nearest = (shares * 448 / spacings).round() * spacings
        return torch.maximum(nearest, not_zero * 2.0**-9) / 448
    if code_map == "dynamic":
        return _nearest_powers(shares, 128, not_zero)
    in_equal_steps = torch.maximum((shares * 15).round(), not_zero) / 15
    return torch.where(has_signs, _nearest_powers(shares, 8, not_zero), in_equal_steps)


def _nearest_powers(shares: Tensor, levels: int, not_zero: Tensor) -> Tensor:
    """Return the nearest shares of a dynamic map with so many codes."""
    fourth_roots = _piecewise_exp2(_piecewise_log2(shares) / 4)
    codes_plus_1 = torch.maximum((levels * fourth_roots).round(), 1.0 + not_zero)
    nearest = _piecewise_exp2(4 * _piecewise_log2(codes_plus_1 / levels))
    return torch.where(codes_plus_1 > 1, nearest, 0.0)


def _piecewise_log2(x: Tensor) -> Tensor:
    """Return log2 of positive numbers, with straight lines between powers of 2; of 0, -1022."""
    mantissa, exponent = torch.frexp(x)  # a mantissa is at least 1/2
    return torch.where(x > 0, exponent + (2 * mantissa - 1) - 1, -1022.0)


def _piecewise_exp2(y: Tensor) -> Tensor:
    """Return the inverse of `_piecewise_log2`."""
    whole = y.floor()
    return torch.ldexp(1 + (y - whole), whole)

"""Device functions that round to the dtype a parameter is stored in, given its machine epsilon."""

import triton
import triton.language as tl

from optgen.contract.constants import FORMATS
from optgen.runtime.fused_triton.device_functions import neg

BFLOAT16_EPS = tl.constexpr(FORMATS["bfloat16"].eps)
FLOAT16_EPS = tl.constexpr(FORMATS["float16"].eps)
FLOAT32_EPS = tl.constexpr(FORMATS["float32"].eps)


@triton.jit
def rounded_to(x, eps):
    """Return x rounded to nearest, ties to even, as a store rounds it."""
    as_float32 = x.to(tl.float32).to(x.dtype)
    as_float16 = x.to(tl.float16).to(x.dtype)
    as_bfloat16 = x.to(tl.bfloat16).to(x.dtype)
    nearest = tl.where(eps == FLOAT32_EPS, as_float32, x)
    nearest = tl.where(eps == FLOAT16_EPS, as_float16, nearest)
    return tl.where(eps == BFLOAT16_EPS, as_bfloat16, nearest)


@triton.jit
def rounded_down_to(x, eps):
    """Return the largest number of the dtype with this machine epsilon that is not above x."""
    nearest = rounded_to(x, eps)
    return tl.where(nearest > x, previous(nearest, eps), nearest)


@triton.jit
def rounded_up_to(x, eps):
    """Return the smallest number of the dtype with this machine epsilon that is not below x."""
    return neg(rounded_down_to(neg(x), eps))


@triton.jit
def rounded_at_random_to(x, chance, eps):
    """Return x rounded, by chance, to a neighbour in the dtype with this machine epsilon.

    For the neighbours near <= |x| <= far, |x| becomes far where
    `chance * (far - near) < |x| - near`, and near elsewhere. A finite number beyond the largest
    becomes the largest.
    """
    magnitude = tl.abs(x)
    near, far = rounded_down_to(magnitude, eps), rounded_up_to(magnitude, eps)
    is_far = (chance * (far - near) < magnitude - near) & (far != float("inf"))
    neighbour = tl.where(is_far, far, near)
    return tl.where(x < 0, neg(neighbour), tl.where(x == 0, x, neighbour))


@triton.jit
def previous(x, eps):
    """Return the next number of the dtype below x; x has this dtype, and is not -inf or 0.0."""
    # The next smaller number has smaller bits, or greater bits if it is negative.
    below_float16 = x.to(tl.float16).to(tl.int16, bitcast=True)
    below_float16 = tl.where(below_float16 < 0, below_float16 + 1, below_float16 - 1).to(tl.int16)
    below_float16 = below_float16.to(tl.float16, bitcast=True).to(x.dtype)
    below_float32 = x.to(tl.float32).to(tl.int32, bitcast=True)
    distance = tl.where(eps == BFLOAT16_EPS, 65536, 1)  # of neighbours, in the bits of float32
    below_float32 = tl.where(below_float32 < 0, below_float32 + distance, below_float32 - distance)
    below_float32 = below_float32.to(tl.float32, bitcast=True).to(x.dtype)
    return tl.where(eps == FLOAT16_EPS, below_float16, below_float32)

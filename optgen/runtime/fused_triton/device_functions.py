"""Device functions for all generated Triton kernels.

This module imports Triton, so only generated `fused_triton` modules and other modules of device
functions import it. Everything here compiles ahead of time for NVIDIA and AMD and runs in Triton's
interpreter: nothing calls libdevice by name.
"""

import math

import triton
import triton.language as tl

# The first rows of a table; the addresses of the streams follow.
NUMEL = tl.constexpr(0)
FIRST_BLOCK = tl.constexpr(1)
PARAM_GROUP = tl.constexpr(2)
STREAMS = tl.constexpr(3)

PI = tl.constexpr(math.pi)
HALF_PI = tl.constexpr(math.pi / 2)
QUARTER_PI = tl.constexpr(math.pi / 4)


@triton.jit
def at(address, start, T: tl.constexpr, VECTOR: tl.constexpr):
    """Return a pointer to element `start` of a stream; `start` must be a multiple of VECTOR."""
    # The hint applies to one value only: it must be on the cast, inside this function.
    pointer = (address + start * (T.primitive_bitwidth // 8)).to(tl.pointer_type(T))
    return tl.multiple_of(pointer, VECTOR * T.primitive_bitwidth // 8)


@triton.jit
def sqrt(x):
    """Return the square root, correctly rounded."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
def div(x, y):
    """Return x / y, correctly rounded."""
    return x / y if y.dtype == tl.float64 else tl.div_rn(x, y)


@triton.jit
def maximum(x, y):
    """Return the larger of two values; NaN where either is NaN, as torch does."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    """Return the smaller of two values; NaN where either is NaN, as torch does."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def ipow(x, n):
    """Return x**n for a float64 x and a whole n in [0, 2**24), by squaring; exact at x = 0."""
    n = n.to(tl.int32)
    y = x * 0 + 1.0
    for bit in tl.static_range(24):
        y = tl.where((n >> bit) & 1 != 0, y * x, y)
        x = x * x
    return y


@triton.jit
def whole_power(x, N: tl.constexpr):
    """Return x**N for a constant N in [1, 1024), by squaring."""
    y = tl.zeros_like(x) + 1.0
    for bit in tl.static_range(10):
        if (N >> bit) & 1 != 0:
            y = y * x
        if (N >> (bit + 1)) != 0:
            x = x * x
    return y


@triton.jit
def power(x, y):
    """Return x**y as torch does, for infinite and zero arguments too; x may be a literal."""
    x = x - tl.zeros_like(y)
    magnitude = tl.exp2(y * tl.log2(tl.abs(x)))
    magnitude = tl.where(
        (y == 0) | (x == 1) | ((x == -1) & (tl.abs(y) == float("inf"))), 1.0, magnitude
    )
    y_is_whole = tl.floor(y) == y
    y_is_odd = y_is_whole & (tl.floor(y * 0.5) * 2 != y)
    is_defined = (x >= 0) | y_is_whole | (tl.abs(x) == float("inf"))
    magnitude = tl.where(is_defined | (y == 0), magnitude, float("nan"))
    return tl.where(y_is_odd & is_negative(x), neg(magnitude), magnitude)


@triton.jit
def is_negative(x):
    """Tell whether a number is below zero or -0.0."""
    return (x < 0) | ((x == 0) & (div(1.0, x) < 0))


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent, within 3 units in the last place if `tl.exp` is within 1."""
    magnitude = tl.abs(x)
    square = x * x
    # The continued fraction x / (1 + x**2 / (3 + x**2 / (5 + ...))) up to 15, as one quotient.
    dividend = ((square * 36 + 6930) * square + 270270) * square + 2027025
    divisor = (((square + 630) * square + 51975) * square + 945945) * square + 2027025
    power = tl.exp(magnitude * -2)
    large = div(1 - power, 1 + power)
    return tl.where(
        magnitude < 0.625, x * div(dividend, divisor), tl.where(x < 0, neg(large), large)
    )


@triton.jit
def atan2(y, x):
    """Return the angle of the point (x, y), within 3 units in the last place."""
    longer, shorter = maximum(tl.abs(x), tl.abs(y)), minimum(tl.abs(x), tl.abs(y))
    # The tangent of the angle to the nearer axis. Two zeros give 0, two infinities give 1.
    tangent = tl.where(longer == shorter, (longer > 0).to(x.dtype), div(shorter, longer))
    # Above about tan(pi / 8), compute the angle to the diagonal instead, which is smaller.
    is_steep = tangent > 0.4140625
    tangent = tl.where(is_steep, div(tangent - 1, tangent + 1), tangent)
    square = tangent * tangent
    # The polynomial of fdlibm's atan; its error is below 5e-18 for tangents up to 7/16.
    series = square * 1.62858201153657823623e-02 - 3.65315727442169155270e-02
    series = series * square + 4.97687799461593236017e-02
    series = series * square - 5.83357013379057348645e-02
    series = series * square + 6.66107313738753120669e-02
    series = series * square - 7.69187620504482999495e-02
    series = series * square + 9.09088713343650656196e-02
    series = series * square - 1.11111104054623557880e-01
    series = series * square + 1.42857142725034663711e-01
    series = series * square - 1.99999999998764832476e-01
    series = series * square + 3.33333333333329318027e-01
    angle = tangent - tangent * square * series
    angle = tl.where(is_steep, angle + QUARTER_PI, angle)
    angle = tl.where(tl.abs(y) > tl.abs(x), HALF_PI - angle, angle)
    angle = tl.where(is_negative(x), PI - angle, angle)
    return tl.where(is_negative(y), neg(angle), angle)


@triton.jit
def round(x):
    """Return the nearest whole number, ties to even; -0.25 gives -0.0."""
    magnitude = tl.abs(x)
    below = tl.floor(magnitude)
    fraction = magnitude - below
    is_odd = tl.floor(below * 0.5) * 2 != below
    nearest = tl.where((fraction > 0.5) | ((fraction == 0.5) & is_odd), below + 1, below)
    return tl.where(is_negative(x), neg(nearest), nearest)


@triton.jit
def rounded(x, T: tl.constexpr):
    """Return the float64 x rounded as a scalar state of dtype T rounds it."""
    return x.to(T).to(tl.float64)


@triton.jit
def is_none(x):
    """Tell whether a hyperparameter is None: it has the bits of optgen.runtime.rule.NONE."""
    return x.to(tl.int64, bitcast=True) == 0x7FF80000004E4F4E


@triton.jit
def sign(x):
    """Return -1, 0 or 1; 0 for NaN, as torch does."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def mod(x, y):
    """Return the remainder with the sign of y, as Python and torch do."""
    remainder = x % y
    return tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder)


@triton.jit
def neg(x):
    """Return -x; Triton's minus subtracts from 0 and so loses the sign of a zero."""
    return x * -1.0


@triton.jit
def lerp(x, y, weight):
    """Interpolate: return the value a fraction `weight` of the way from x to y."""
    return x + weight * (y - x)

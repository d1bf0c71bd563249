"""Device functions for all generated Triton kernels.

Imports Triton, so only generated `fused_triton` modules import it. Everything here compiles ahead
of time for NVIDIA and AMD and runs in Triton's interpreter: nothing calls libdevice by name.
"""

import triton
import triton.language as tl

# The first rows of a table; the addresses of the streams follow.
NUMEL = tl.constexpr(0)
FIRST_BLOCK = tl.constexpr(1)
GROUP = tl.constexpr(2)
STREAMS = tl.constexpr(3)


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
def power(x, y):
    """Return x**y as torch does, for infinite and zero arguments too; x may be a literal."""
    x = x - tl.zeros_like(y)
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    size = tl.where((y == 0) | (x == 1) | ((x == -1) & (tl.abs(y) == float("inf"))), 1.0, size)
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(y * 0.5) * 2 != y)
    negative = (x < 0) | ((x == 0) & (div(1.0, x) < 0))
    defined = (x >= 0) | whole | (tl.abs(x) == float("inf"))
    return tl.where(odd & negative, neg(size), tl.where(defined | (y == 0), size, float("nan")))


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
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def neg(x):
    """Return -x; Triton's minus subtracts from 0 and so loses the sign of a zero."""
    return x * -1.0


@triton.jit
def lerp(x, y, weight):
    """Interpolate: return the value a fraction `weight` of the way from x to y."""
    return x + weight * (y - x)

"""Define specs of rules that draw random numbers."""

from __future__ import annotations

from optgen.spec import Spec

NOISE = '''from optgen.spec import *

def noise(seed, k):
    """Uniform in [-1, 1)."""
    return 2 * random(seed, k) - 1

@optimizer()
def Noise(
    p, g, t, /, a=state("a"), b=state("b"), k=state("stream", shape="scalar", init="index"),
    *, lr=hyper(0.5), seed=hyper(7),
):
    """Several calls, in a helper and in a branch too."""
    a = random(seed, k)
    if t > 1:
        b = random(seed, k)
    else:
        b = noise(seed + 0.5, k)
    p = p - lr * noise(seed, k) * random(3 * seed - 2**24, 5) - where(a < 0 or b < -1, g, 0)
'''


def noise_spec(op: str) -> Spec:
    """Return the spec of `Noise` with this random op."""
    return Spec("Noise", NOISE.replace("random(", f"{op}("), "noise.py", 1)


REDUCING = '''from optgen.spec import *

@optimizer()
def Reducing(
    p, g, t, /, m=state("m"), a=state("a"), largest=state("largest", shape="scalar"),
    k=state("stream", shape="scalar", init="index"), *, lr=hyper(0.1), seed=hyper(3),
):
    """Random numbers before a sum, after it, and both in one sweep."""
    a = random(seed, k)
    largest = maximum(0.5 * largest, max_abs(g * a))
    g = g * minimum(1 / norm(g * random16(seed, 5), over="all"), 1)
    m = 0.5 * m + g / largest * (random16(seed, k) + 0.5)
    p = rounded_at_random(p - lr * g / rms(g), random16(seed, k))
'''

AXES = '''from optgen.spec import *

@optimizer()
def Axes(
    p, g, t, /, r=state("r", shape="row", when="factored"), a=state("a"),
    k=state("stream", shape="scalar", init="index"), *, lr=hyper(0.1), seed=hyper(3),
):
    """Random numbers beside rows and columns: before sums, after them, and in a branch."""
    a = random(seed, k)
    if factored(p):
        r = lerp(r, row_mean((g * a) ** 2), 0.5)
        g = g * random16(seed, 5) / (sqrt(r) + col_norm(g) + 1)
    p = rounded_at_random(p - lr * g / rms(g), random16(seed, k))
'''
MATRIX_OP = '''from optgen.spec import *

@optimizer()
def MatrixOp(
    p, g, t, /, a=state("a"), b=state("momentum_buffer"),
    k=state("stream", shape="scalar", init="index"),
    *, lr=hyper(0.1), seed=hyper(3), ns=hyper((1.5, -0.5, 0.0)),
):
    """Random numbers before a matrix op, and after it."""
    require(ndim(p) == 2, "matrices only: {shape}")
    a = random(seed, k)
    b = 0.5 * b + g * (a + 0.5)
    o = orthogonalize(b, ns, 2, 1e-3)
    p = rounded_at_random(p - lr * o * random(seed, 5), random16(seed, k))
'''
WHOLE_MATRICES = '''from optgen.spec import *

@optimizer()
def WholeMatrices(
    p, g, t, /, L=state("left", shape=("rows", "rows")), a=state("a"), c=state("lost"),
    k=state("stream", shape="scalar", init="index"), *, lr=hyper(0.1), seed=hyper(3),
):
    """Random numbers and roundings beside products of matrices."""
    require(ndim(p) == 2, "matrices only: {shape}")
    a = random(seed, k)
    L = 0.5 * L + (g * a) @ transpose(g)
    if t > 1:
        g = g * (random(seed + 1, k) + 0.5)
    u = c - lr * (L @ g) / (1 + norm(L))
    q = rounded(p + u)
    c = u - (q - p)
    p = rounded_at_random(q + lr * a, random16(seed, 5))
'''
RULES_WITH_MATRICES = {"Axes": AXES, "MatrixOp": MATRIX_OP, "WholeMatrices": WHOLE_MATRICES}

STATEMENTS_THAT_ONCE_FAILED = {
    "a sum of random numbers alone": ("p = p - lr * g * mean(random(seed, 2))",),
    "a sweep over random numbers before another": (
        *("x = random(seed, t)", "low = a <= m", "a = 0.5 * a", "e = mean(x)", "m = 0.5 * m"),
        "p = p - lr * where(low, e + x, g)",
    ),
    "random numbers of 16 bits as operands of one function": (
        *("r = random16(seed, 2)", "s = minimum(r, random16(3, 2)) * lerp(r, r, r)"),
        "p = p - lr * g * s * clamp(r, r, r)",
    ),
    "a rounding at a fixed chance": ("p = rounded_at_random(p - lr * g, 0.5)",),
}
"""Statements that once failed, by what is unusual in them."""

THREE_STREAMS = '''from optgen.spec import *

@optimizer()
def Three(p, g, t, /, m=state("m"), *, lr=hyper(0.1)):
    """A loop over three streams prefetches strips of a large tensor."""
    m = lerp(m, random(3, 2) + random16(3, 2), 0.25)
    p = p - lr * g
'''
ROUNDING_ALONE = '''from optgen.spec import *

@optimizer()
def Step(p, g, t, /, k=state("stream", shape="scalar", init="index"), *, lr=hyper(1.0)):
    """Nothing but a step and a rounding."""
    p = rounded_at_random(p - lr * g, random16(3, k))
'''

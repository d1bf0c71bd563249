"""Rules whose names collide with names in printed code, and rules with choices.

Tests read them and never run them.
"""

from optgen.spec import (
    abs,
    choice,
    flag,
    fresh,
    hyper,
    maximum,
    minimum,
    optimizer,
    sqrt,
    state,
    where,
)


@optimizer()
def Scalars(
    p,
    g,
    t,
    /,
    m=state("clas"),
    b=state("buf"),
    q=state("bufs"),
    c=state("i", shape="scalar", init=1),
    x=state("slice"),
    y=state("X", shape="scalar"),
    *,
    lr=hyper(0.1, ge=0),
    operand=hyper(0.5),
    n=hyper(0.25),
    n_=hyper(0.125),
):
    """Names whose plurals Python reserves: clas, a, i. A backslash ends this line \\

    Also names that C++ and Triton use, and names that look like generated names.
    """
    a = g + 0.5 * p
    i = abs(a)
    buf = sqrt(i + 1) * a
    bufs = buf - i * a
    fresh_buf = lr * n
    old_i = c
    c = 0.5 * c + n_
    if fresh(b):
        b = g
    else:
        b = operand * b + 0.5 * g
    if fresh(q):
        q = buf
    else:
        q = minimum(q, bufs)
    x = 0.5 * x + b
    y = 0.5 * y + n
    param = m + b + y * x
    list = 0.25 * param
    Tensor = maximum(list, param)
    b_then = b * Tensor
    operands = (Tensor + 1) / (abs(b_then * i) + 1)
    m = 0.5 * m + a * operands
    torch = fresh_buf * n * old_i
    p = p - torch * (m + q) - lr * operands


@optimizer()
def Conditions(
    p,
    g,
    t,
    /,
    b=state("buf"),
    w=state("index", when="streams"),
    *,
    lr=hyper(0.1, ge=0),
    operand=hyper(0.5),
    condition1=hyper(0.75),
    n=hyper(0.25),
    streams=flag(True),
    block=flag(False),
):
    """Names that printers give to conditions, and one condition written in two forms."""
    t_above_1 = 0.5
    b = operand * b + 0.5 * g
    if t > 1:
        T = b * t_above_1
    else:
        T = b
    if 1 < t:
        T = T + n * b
    if streams:
        w = w + T * g
        T = w + T
    if block and t > 2:
        STEP = 2 * n
    else:
        STEP = n
    if condition1 > 0.5 and operand > 0.25 and t * n > 0.25:
        T = condition1 * T
    p = p - lr * STEP * T


@optimizer()
def Kernel(
    p,
    g,
    /,
    m=state("exp_avg"),
    s=state("total", shape="scalar"),
    *,
    lr=hyper(0.1, ge=0),
    norm=choice("first", "second", None),
    mode=choice(None, "a", "b"),
):
    """Choices in a branch of the scalar program, in a branch of the sweep, and in a `where`."""
    if norm == "second":
        step = 2 * lr
        s = s + 1
    elif norm is None:
        step = lr
    else:
        step = 0.5 * lr
    if mode is not None and norm != "first":
        g = 2 * g
    m = 0.5 * m + where(mode == "b", g, 0.5 * g)
    p = p - step * m / (s + 1)


@optimizer(paper="https://example.org")
def Limits(
    p,
    g,
    t,
    /,
    *,
    lr=hyper(0.1, ge=0),
    limits=hyper((None, 0.1), ge=0, optional=True, error="limit {number}: {}"),
):
    """A tuple whose first number may be None. The rule reads it as `low` and as `limits[0]`."""
    low, high = limits
    if low is None:
        floor = high / 2
    else:
        floor = low
    if limits[0] is not None and t > 1:
        g = g + p
    p = p - lr * maximum(g, floor)


@optimizer()
def Bursts(
    p,
    g,
    /,
    m=state("strips"),
    first=state("first", shape="scalar", init=0.5),
    *,
    end=hyper(0.1, ge=0),
    strip=hyper(0.2),
    prefetch=hyper(0.3),
    delayed=hyper(0.4),
):
    """Names of variables in the printed C++ loops over three arrays."""
    prefetch_strip = end * first
    first = first * delayed + prefetch
    m = strip * m + prefetch_strip * g
    p = p - end * m * first

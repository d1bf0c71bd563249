"""Nero, as jxbz/nero has it. A convolution takes a flat view: `"view": (channels, -1)`."""

from optgen.spec import (
    abs,
    factored,
    fresh,
    hyper,
    mean,
    ndim,
    optimizer,
    require,
    row_mean,
    row_norm,
    sqrt,
    state,
    where,
)


def balanced(x, eps):
    """Return rows without their means, of length one."""
    x = x - row_mean(x)
    return x / (row_norm(x) + eps)


@optimizer(paper="https://arxiv.org/abs/2102.07227")
def Nero(
    p,
    g,
    t,
    /,
    r=state("exp_avg_sq", shape="row", when="factored", dtype="at_least_float32"),
    v=state("exp_avg_sq_vector", when="not factored", dtype="at_least_float32"),
    s=state("scale", shape="scalar"),
    *,
    lr=hyper(0.01, ge=0),
    beta=hyper(0.999, ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
):
    """Rows take steps of their own length, and stay at mean 0 and length 1 (Liu et al., 2021)."""
    require(ndim(p) <= 2, "Nero takes matrices and vectors, not the shape {shape}: give it a view")
    if factored(p):
        if fresh(r):
            p = balanced(p, eps)
            s = mean(row_norm(p))
        r = beta * r + (1 - beta) * row_norm(g) ** 2
        p = p - lr * where(s == 0, 0.01, s) * g / (sqrt(r / (1 - beta**t)) + eps)
        p = balanced(p, eps)
    else:
        if fresh(v):
            s = mean(abs(p))
        v = beta * v + (1 - beta) * g**2
        p = p - lr * where(s == 0, 0.01, s) * g / (sqrt(v / (1 - beta**t)) + eps)

"""Nero for vectors and matrices, as jxbz/nero has it."""

from optgen.spec import (
    abs,
    factored,
    flag,
    fresh,
    hyper,
    mean,
    ndim,
    optimizer,
    require,
    row_mean,
    row_norm,
    row_sum,
    sqrt,
    state,
    where,
)


@optimizer(paper="https://arxiv.org/abs/2102.07227")
def Nero(
    p,
    g,
    t,
    /,
    v=state("exp_avg_sq", shape="row", when="factored", dtype="at_least_float32"),
    w=state("exp_avg_sq_vector", when="not factored", dtype="at_least_float32"),
    scale=state("scale", shape="scalar"),
    *,
    lr=hyper(1e-2, ge=0),
    beta=hyper(0.999, ge=0, lt=1),
    constraints=flag(True, about="Keep rows of matrices at mean 0 and length 1"),
):
    """Normalised steps for each row, whose weights are kept on a sphere (Liu et al., 2021)."""
    require(ndim(p) <= 2, "Nero is for vectors and matrices, not for {shape}")
    if factored(p):
        if constraints and t == 1:
            p = p - row_mean(p)
            p = p / row_norm(p)
        if fresh(scale):
            scale = mean(row_norm(p))
        v = beta * v + (1 - beta) * row_sum(g**2)
        root = sqrt(v / (1 - beta**t))
        p = p - lr * scale * where(root > 0, g / root, 0)
        if constraints:
            p = p - row_mean(p)
            p = p / row_norm(p)
    else:
        if fresh(scale):
            scale = mean(abs(p))
            scale = where(scale == 0, 0.01, scale)
        w = beta * w + (1 - beta) * g**2
        size = sqrt(w / (1 - beta**t))
        p = p - lr * scale * where(size > 0, g / size, 0)

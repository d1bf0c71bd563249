"""APOLLO: gradients scaled as Adam would scale their random projections.

The shorter side is projected to random directions. Each row of a tall matrix, or each column of a
wide one, has a scale of its own; with `mini`, the whole parameter has one.
"""

from optgen.spec import (
    col_norm,
    cols,
    flag,
    fresh,
    gaussian,
    hyper,
    maximum,
    minimum,
    ndim,
    norm,
    optimizer,
    require,
    row_norm,
    rows,
    sqrt,
    state,
    tall,
)

TINY = 1e-8
GROWTH = 1.01  # a step's norm is at most this times the last step's


@optimizer(paper="https://arxiv.org/abs/2412.05270")
def APOLLO(
    p,
    g,
    t,
    /,
    W=state("right_projection", shape=("cols", "rank"), when="tall"),
    m=state("exp_avg", shape=("rows", "rank"), when="tall"),
    v=state("exp_avg_sq", shape=("rows", "rank"), dtype="at_least_float32", when="tall"),
    U=state("left_projection", shape=("rank", "rows"), when="not tall"),
    n=state("exp_avg_wide", shape=("rank", "cols"), when="not tall"),
    w=state("exp_avg_sq_wide", shape=("rank", "cols"), dtype="at_least_float32", when="not tall"),
    last_norm=state("last_norm", shape="row"),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.0, ge=0),
    rank=hyper(256, ge=1, whole=True),
    update_proj_gap=hyper(200, ge=1, whole=True),
    scale=hyper(1.0, ge=0),
    mini=flag(False),
    seed=hyper(0, ge=0, whole=True),
):
    """Gradients scaled by random projections to a low rank (Zhu et al., 2024)."""
    require(ndim(p) >= 2, "APOLLO takes matrices, not the shape {shape}")
    beta1, beta2 = betas
    used_rank = minimum(rank, minimum(rows(p), cols(p)))

    if tall(p):
        if (t - 1) % update_proj_gap == 0:
            W = gaussian(W, seed, k) / sqrt(used_rank)
        x = g @ W
        m = beta1 * m + (1 - beta1) * x
        v = beta2 * v + (1 - beta2) * x**2
        y = m / (sqrt(v) + eps)
        u = g * row_norm(y) / (row_norm(x) + TINY)
        if mini:
            u = g * norm(y) / (norm(x) + TINY)
    else:
        if (t - 1) % update_proj_gap == 0:
            U = gaussian(U, seed, k) / sqrt(used_rank)
        z = U @ g
        n = beta1 * n + (1 - beta1) * z
        w = beta2 * w + (1 - beta2) * z**2
        s = n / (sqrt(w) + eps)
        u = g * col_norm(s) / (col_norm(z) + TINY)
        if mini:
            u = g * norm(s) / (norm(z) + TINY)

    if fresh(last_norm):  # `last_norm` holds the same norm in every row
        last_norm = 0 * last_norm + norm(u)
    else:
        limit = maximum(norm(u) / (last_norm + TINY), GROWTH) / GROWTH
        last_norm = norm(u) / limit
        u = u / limit
    p = p - lr * sqrt(scale) * sqrt(1 - beta2**t) / (1 - beta1**t) * u
    p = p - lr * weight_decay * p

"""Fira, as xichen-fy/Fira has it: GaLore whose steps keep the rest of the gradient.

The shorter side is projected. The rest is scaled as Adam scales the projection, by rows or columns.
Its norm grows by 1 % in a step at most.
"""

from optgen.spec import (
    col_norm,
    hyper,
    maximum,
    ndim,
    norm,
    optimizer,
    require,
    row_norm,
    singular_vectors,
    sqrt,
    state,
    tall,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2410.01623")
def Fira(
    p,
    g,
    t,
    /,
    W=state("right_vectors", shape=("cols", "rank"), when="tall"),
    m=state("exp_avg", shape=("rows", "rank"), when="tall"),
    v=state("exp_avg_sq", shape=("rows", "rank"), dtype="at_least_float32", when="tall"),
    U=state("left_vectors", shape=("rows", "rank"), when="not tall"),
    n=state("exp_avg_wide", shape=("rank", "cols"), when="not tall"),
    w=state("exp_avg_sq_wide", shape=("rank", "cols"), dtype="at_least_float32", when="not tall"),
    last_norm=state("scaling_grad", shape="row"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.0, ge=0),
    rank=hyper(128, ge=1, whole=True),
    update_proj_gap=hyper(200, ge=1, whole=True),
    alpha=hyper(1.0, ge=0, about="Scale of what is projected back"),
):
    """GaLore, and the rest of the gradient in proportion (Chen et al., 2024)."""
    require(ndim(p) == 2, "Fira takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    if tall(p):
        if (t - 1) % update_proj_gap == 0:
            W = singular_vectors(transpose(g), rank)
        x = g @ W
        m = beta1 * m + (1 - beta1) * x
        v = beta2 * v + (1 - beta2) * x**2
        y = m / (sqrt(v) + eps)
        u = alpha * y @ transpose(W)
        rest = (g - alpha * x @ transpose(W)) * (row_norm(y) / (row_norm(x) + 1e-8))
    else:
        if (t - 1) % update_proj_gap == 0:
            U = singular_vectors(g, rank)
        z = transpose(U) @ g
        n = beta1 * n + (1 - beta1) * z
        w = beta2 * w + (1 - beta2) * z**2
        h = n / (sqrt(w) + eps)
        u = alpha * U @ h
        rest = (g - alpha * U @ z) * (col_norm(h) / (col_norm(z) + 1e-8))
    if t == 1:  # `last_norm` holds the same norm in every row
        last_norm = 0 * last_norm + norm(rest)
    else:
        limit = maximum(norm(rest) / (last_norm + 1e-8), 1.01) / 1.01
        last_norm = norm(rest) / limit
        rest = rest / limit
    p = p - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * (u + rest)
    p = p - lr * weight_decay * p

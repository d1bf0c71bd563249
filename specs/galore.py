"""GaLore: Adam on the projection of the gradient to its leading singular vectors.

The shorter side is projected. Moments stay as they are when the projection changes.
"""

from optgen.spec import (
    hyper,
    ndim,
    optimizer,
    require,
    singular_vectors,
    sqrt,
    state,
    tall,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2403.03507")
def GaLore(
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
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.0, ge=0),
    rank=hyper(128, ge=1, whole=True),
    update_proj_gap=hyper(200, ge=1, whole=True),
    scale=hyper(0.25, ge=0),
):
    """Adam in the subspace of the gradient's leading singular vectors (Zhao et al., 2024)."""
    require(ndim(p) >= 2, "GaLore takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    # Both moments take one projection. Of a gradient of low rank, parts of it are rounding noise.
    if tall(p):
        if (t - 1) % update_proj_gap == 0:
            W = singular_vectors(transpose(g), rank)
        x = g @ W
        m = beta1 * m + (1 - beta1) * x
        v = beta2 * v + (1 - beta2) * x**2
        u = m / (sqrt(v) + eps) @ transpose(W)
    else:
        if (t - 1) % update_proj_gap == 0:
            U = singular_vectors(g, rank)
        z = transpose(U) @ g
        n = beta1 * n + (1 - beta1) * z
        w = beta2 * w + (1 - beta2) * z**2
        u = U @ (n / (sqrt(w) + eps))
    p = p - lr * scale * sqrt(1 - beta2**t) / (1 - beta1**t) * u
    p = p - lr * weight_decay * p

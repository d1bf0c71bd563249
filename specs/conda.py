"""Conda, as jie040109/Conda has it: Adam whose second moment is in the momentum's singular vectors.

The shorter side is rotated. The authors decompose the momentum; here its Gram matrix is decomposed,
whose eigenvectors are the same vectors in another order.
"""

from optgen.spec import (
    eigenvectors,
    hyper,
    ndim,
    optimizer,
    require,
    sqrt,
    state,
    tall,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2509.24218")
def Conda(
    p,
    g,
    t,
    /,
    m=state("exp_avg", dtype="at_least_float32"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    W=state("basis_right", shape=("cols", "cols"), dtype="at_least_float32", when="tall"),
    U=state("basis_left", shape=("rows", "rows"), dtype="at_least_float32", when="not tall"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    update_proj_gap=hyper(2000, ge=1, whole=True),
    scale=hyper(1.0, ge=0),
):
    """Adam in singular vectors of the momentum, found every so often (Wang et al., 2025)."""
    require(ndim(p) == 2, "Conda takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    if tall(p):
        if (t - 1) % update_proj_gap == 0:
            W = eigenvectors(transpose(m) @ m)
        x, y = g @ W, m @ W
        v = beta2 * v + (1 - beta2) * x**2
        u = scale * (y / (sqrt(v) + eps)) @ transpose(W)
    else:
        if (t - 1) % update_proj_gap == 0:
            U = eigenvectors(m @ transpose(m))
        z, w = transpose(U) @ g, transpose(U) @ m
        v = beta2 * v + (1 - beta2) * z**2
        u = scale * U @ (w / (sqrt(v) + eps))
    p = p - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * u
    p = p - lr * weight_decay * p

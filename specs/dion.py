"""Dion: low-rank power iteration on the momentum, which keeps the error for later steps."""

from optgen.spec import (
    col_norm,
    cols,
    fresh,
    gaussian,
    hyper,
    ndim,
    optimizer,
    qr,
    require,
    rows,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2504.05295")
def Dion(
    p,
    g,
    t,
    /,
    m=state("momentum"),
    Q=state("Q", shape=("cols", "rank")),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(1e-2, ge=0),
    mu=hyper(0.95, ge=0),
    weight_decay=hyper(0.01, ge=0),
    rank=hyper(768, ge=1, whole=True),
    epsilon=hyper(1e-8, ge=0),
    seed=hyper(0, ge=0, whole=True),
):
    """Orthonormal updates of low rank, with error feedback (Ahn et al., 2025)."""
    require(ndim(p) >= 2, "Dion takes matrices, not the shape {shape}")

    if fresh(Q):
        Q = gaussian(Q, seed, k)
    m = m + g
    P = qr(m @ Q)
    R = transpose(m) @ P
    m = m - (1 - mu) * P @ transpose(R)
    Q = R / (col_norm(R) + epsilon)
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(rows(p) / cols(p)) * P @ transpose(Q)

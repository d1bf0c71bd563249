"""Mano, as xie-lab-ml/Mano-Restriking-Manifold-Optimization-for-LLM-Training has it."""

from optgen.spec import (
    col_norm,
    col_sum,
    cols,
    flag,
    hyper,
    maximum,
    ndim,
    optimizer,
    require,
    row_norm,
    row_sum,
    rows,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2601.23000")
def Mano(
    p,
    g,
    t,
    /,
    m=state("momentum_buffer"),
    *,
    lr=hyper(1e-3, ge=0),
    weight_decay=hyper(0.1, ge=0),
    eps=hyper(1e-8, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    nesterov=flag(False),
):
    """Momentum without its part along the weights, by columns, then by rows (Gu and Xie, 2026)."""
    require(ndim(p) == 2, "Mano takes matrices, not the shape {shape}")

    m = momentum * m + g
    if nesterov:
        u = g + momentum * m
    else:
        u = m
    if t % 2 == 1:
        w = p / maximum(col_norm(p), eps)
        u = u - col_sum(u * w) * w
        u = u / maximum(col_norm(u), eps) * sqrt(rows(p))
    else:
        w = p / maximum(row_norm(p), eps)
        u = u - row_sum(u * w) * w
        u = u / maximum(row_norm(u), eps) * sqrt(cols(p))
    p = p - lr * weight_decay * p
    p = p - lr * 0.2 * u  # 0.2: as large as Adam's steps

"""Muon squared with auxiliary AdamW: result 7 (wilsoncwu).

New: Adam's second moment scales the momentum before it is made orthogonal. The group's flag `aux`
sends its parameters to AdamW; the others are matrices.
"""

from optgen.spec import (
    cols,
    factored,
    flag,
    hyper,
    lerp,
    maximum,
    norm,
    optimizer,
    orthogonalize,
    rows,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2604.09967")
def MuonSquared(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.0125, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    aux=flag(False),
):
    """Muon of a momentum that the root mean squares of its elements scale; AdamW for the rest."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    v = lerp(v, g**2, 1 - beta2)
    p = p - lr * weight_decay * p
    if aux:
        p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    elif factored(p):
        u = lerp(g, m, beta1) / (sqrt(v) + eps)
        o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
        p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

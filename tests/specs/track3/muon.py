"""Muon with auxiliary AdamW: results 1, 3 and 12 (Keller Jordan) and 6 (nilin and alint77).

The four differ in the learning rate and the weight decay. The group's flag `aux` sends its
parameters to AdamW; the others are matrices.
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


@optimizer(paper="https://kellerjordan.github.io/posts/muon/")
def Muon(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", when="aux"),
    *,
    lr=hyper(0.035, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.025, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    aux=flag(False),
):
    """Momentum made orthogonal by twelve Newton-Schulz iterations; AdamW for the rest."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    p = p - lr * weight_decay * p
    if aux:
        v = lerp(v, g**2, 1 - beta2)
        p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    elif factored(p):
        u = lerp(g, m, beta1)
        o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
        p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

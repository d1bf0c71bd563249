"""Spectral descent with auxiliary AdamW: result 22 (Keller Jordan).

New: Muon without momentum, which is also Shampoo without memory. The group's flag `aux` sends its
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
def SpectralDescent(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", when="aux"),
    *,
    lr=hyper(0.03, ge=0),
    betas=hyper((0.0, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.015, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    aux=flag(False),
):
    """The gradient, made orthogonal; AdamW for the rest."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    p = p - lr * weight_decay * p
    if aux:
        v = lerp(v, g**2, 1 - beta2)
        p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    elif factored(p):
        o = orthogonalize(m / (norm(m) + 1e-7), ns_coefficients, 12, 1)
        p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

"""Contra-Muon with auxiliary AdamW: results 11 (nilin) and 24 (zhiweixx, another schedule).

New beside result 9: a share of the momentum, scaled to a largest singular value of 1, is taken away
from the orthogonal update. Five power iterations find that value. The group's flag `aux` sends its
parameters to AdamW; the others are matrices.
"""

from optgen.spec import (
    col_mean,
    cols,
    factored,
    flag,
    hyper,
    lerp,
    maximum,
    norm,
    optimizer,
    orthogonalize,
    row_mean,
    rows,
    sqrt,
    state,
    transpose,
    where,
)


def unit(x):
    return x / maximum(norm(x), 1e-10)


def turned(x, v):
    """Return a direction in which the matrix stretches more than in the given one."""
    return unit(transpose(x) @ unit(x @ v))


@optimizer(paper="https://github.com/nilin/contra-muon")
def ContraMuon(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", when="aux"),
    r=state("row_sq", shape="row", when="factored"),
    c=state("col_sq", shape="col", when="factored"),
    *,
    lr=hyper(0.0375, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    aux=flag(False),
):
    """NorMuon that leaves out a part of the raw momentum; AdamW for the rest."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    if aux:
        v = lerp(v, g**2, 1 - beta2)
        p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    elif factored(p):
        u = lerp(g, m, beta1)
        o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
        v5 = turned(u, turned(u, turned(u, turned(u, turned(u, unit(transpose(0 * c + 1)))))))
        contra = o - 0.2 * u / maximum(norm(u @ v5), 1e-10)
        o = sqrt(maximum(1, rows(p) / cols(p))) * contra * norm(o) / maximum(norm(contra), 1e-10)
        if rows(p) >= cols(p):
            r = lerp(r, row_mean(o**2), 1 - beta2)
            u = o / sqrt(maximum(r, 1e-10))
        else:
            c = lerp(c, col_mean(o**2), 1 - beta2)
            u = o / sqrt(maximum(c, 1e-10))
        u = u * norm(o) / maximum(norm(u), 1e-10)
        low = 0.35 * maximum(norm(p), 1e-8)
        size = maximum(norm(u), 1e-8)
        p = p - lr * where(size < low, low / size, 1) * u

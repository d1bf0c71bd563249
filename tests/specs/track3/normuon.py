"""NorMuon with auxiliary AdamW: result 10 (lliu606 and Zhenghao Xu).

New: the rows of Muon's update, or the columns of a wide one, get equal sizes. The group's flag
`aux` sends its parameters to AdamW; the others are matrices.
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
)


@optimizer(paper="https://arxiv.org/abs/2510.05491")
def NorMuon(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", when="aux"),
    r=state("row_sq", shape="row", when="factored"),
    c=state("col_sq", shape="col", when="factored"),
    *,
    lr=hyper(0.035, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.025, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    aux=flag(False),
):
    """Muon with a second moment for each row or column; AdamW for the rest (Li et al., 2025)."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    p = p - lr * weight_decay * p
    if aux:
        v = lerp(v, g**2, 1 - beta2)
        p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    elif factored(p):
        u = lerp(g, m, beta1)
        o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
        o = sqrt(maximum(1, rows(p) / cols(p))) * o
        if rows(p) >= cols(p):
            r = lerp(r, row_mean(o**2), 1 - beta2)
            u = o / sqrt(maximum(r, 1e-10))
        else:
            c = lerp(c, col_mean(o**2), 1 - beta2)
            u = o / sqrt(maximum(c, 1e-10))
        p = p - lr * u * norm(o) / maximum(norm(u), 1e-10)

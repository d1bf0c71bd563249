"""NorMuonH with auxiliary AdamW: result 8 (Kaiyue Wen).

New: MuonH, and a second moment for each row, or each column of a wide matrix. The group's flag
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


def on_sphere(p, u, lr):
    """Move by a share of the norm, and return to the sphere where the weights were."""
    q = p - lr * u * norm(p) / maximum(norm(u), 1e-10)
    return q / maximum(norm(q), 1e-10) * norm(p)


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/273")
def NorMuonH(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", when="aux"),
    r=state("row_sq", shape="row", when="factored"),
    c=state("col_sq", shape="col", when="factored"),
    *,
    lr=hyper(0.018, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    aux=flag(False),
):
    """Muon of rows or columns of equal size, on the sphere of the weights; AdamW for the rest."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    if aux:
        v = lerp(v, g**2, 1 - beta2)
        p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    elif factored(p):
        u = lerp(g, m, beta1)
        o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
        o = sqrt(maximum(1, rows(p) / cols(p))) * o
        if rows(p) >= cols(p):
            r = lerp(r, row_mean(o**2), 1 - beta2)
            o = o / sqrt(maximum(r, 1e-10))
        else:
            c = lerp(c, col_mean(o**2), 1 - beta2)
            o = o / sqrt(maximum(c, 1e-10))
        p = on_sphere(p, o, lr)

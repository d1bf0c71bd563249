"""NorMuon as in track 3: Muon with a second moment per row, or per column of a wide matrix."""

from optgen.spec import (
    col_mean,
    cols,
    hyper,
    lerp,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    row_mean,
    rows,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2510.05491")
def NorMuon(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    r=state("row_mean_sq", shape="row"),
    c=state("col_mean_sq", shape="col"),
    *,
    lr=hyper(0.035, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    beta2=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """Muon whose rows or columns get equal norms; the matrix keeps its norm (Li et al., 2025)."""
    require(ndim(p) == 2, "NorMuon takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
    o = sqrt(maximum(1, rows(p) / cols(p))) * o
    if rows(p) >= cols(p):
        r = lerp(r, row_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(r, 1e-10))
    else:
        c = lerp(c, col_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(c, 1e-10))
    p = p - lr * weight_decay * p
    p = p - lr * u * norm(o) / maximum(norm(u), 1e-10)

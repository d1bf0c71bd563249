"""Contra-Muon: NorMuon after a share of the momentum is taken away from the orthogonal update.

The momentum is first scaled to a largest singular value of 1, which five power iterations find.
"""

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
    transpose,
)


def unit(x):
    return x / maximum(norm(x), 1e-10)


def turned(x, v):
    """Return the next direction of a power iteration, closer to the first singular vector."""
    return unit(transpose(x) @ unit(x @ v))


@optimizer(paper="https://github.com/nilin/contra-muon")
def ContraMuon(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    r=state("row_mean_sq", shape="row"),
    c=state("col_mean_sq", shape="col"),
    *,
    lr=hyper(0.0375, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    beta2=hyper(0.95, ge=0, lt=1),
    contra=hyper(0.2, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """NorMuon that leaves out a part of the raw momentum."""
    require(ndim(p) == 2, "ContraMuon takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
    v5 = turned(u, turned(u, turned(u, turned(u, turned(u, unit(transpose(0 * c + 1)))))))
    less = o - contra * u / maximum(norm(u @ v5), 1e-10)
    o = sqrt(maximum(1, rows(p) / cols(p))) * less * norm(o) / maximum(norm(less), 1e-10)
    if rows(p) >= cols(p):
        r = lerp(r, row_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(r, 1e-10))
    else:
        c = lerp(c, col_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(c, 1e-10))
    p = p - lr * u * norm(o) / maximum(norm(u), 1e-10)

"""Contra-Muon: NorMuon, after a share of the momentum is subtracted from the orthogonal update.

The momentum is first divided by its largest singular value, which five power iterations find.
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


def unit_vector(x):
    return x / maximum(norm(x), 1e-10)


def power_iteration(x, v):
    """Return the vector after one power iteration."""
    return unit_vector(transpose(x) @ unit_vector(x @ v))


def leading_direction(x, v):
    """Return an estimate of the first right singular vector, by five power iterations from v."""
    v1 = power_iteration(x, v)
    v2 = power_iteration(x, v1)
    v3 = power_iteration(x, v2)
    v4 = power_iteration(x, v3)
    return power_iteration(x, v4)


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
    """NorMuon of an orthogonal update from which a share of the momentum is subtracted."""
    require(ndim(p) == 2, "ContraMuon takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
    ones = transpose(0 * c + 1)
    v = leading_direction(u, unit_vector(ones))
    d = o - contra * u / maximum(norm(u @ v), 1e-10)
    o = sqrt(maximum(1, rows(p) / cols(p))) * d * norm(o) / maximum(norm(d), 1e-10)
    if rows(p) >= cols(p):
        r = lerp(r, row_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(r, 1e-10))
    else:
        c = lerp(c, col_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(c, 1e-10))
    p = p - lr * u * norm(o) / maximum(norm(u), 1e-10)

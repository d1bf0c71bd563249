"""Contra-Muon with Aurora: rows of tall matrices and columns of wide ones get equal norms.

A matrix is made orthogonal twice. Before each time its lines are scaled, and those that became
small the first time are enlarged.
"""

from optgen.spec import (
    col_norm,
    col_ones,
    col_sum,
    cols,
    hyper,
    lerp,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    row_norm,
    row_sum,
    rows,
    sqrt,
    state,
    transpose,
)


def polar_factor(x, ns_coefficients):
    return orthogonalize(x / (norm(x) + 1e-7), ns_coefficients, 12, 1)


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


@optimizer(paper="https://github.com/tilde-research/aurora-release")
def ContraAurora(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    *,
    lr=hyper(0.0375, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    contra=hyper(0.2, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """An orthogonal update with lines of equal norms, minus a share of the momentum."""
    require(ndim(p) == 2, "ContraAurora takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    if rows(p) > cols(p):
        r = 1 / maximum(row_norm(u), 1e-7)
        o = polar_factor(r * u, ns_coefficients)
        r = r * sqrt(cols(p) / rows(p) / maximum(row_sum(o**2), 1e-14))
        o = polar_factor(r * u, ns_coefficients)
    elif rows(p) < cols(p):
        c = 1 / maximum(col_norm(u), 1e-7)
        o = polar_factor(c * u, ns_coefficients)
        c = c * sqrt(rows(p) / cols(p) / maximum(col_sum(o**2), 1e-14))
        o = polar_factor(c * u, ns_coefficients)
    else:
        o = polar_factor(u, ns_coefficients)
    v = leading_direction(u, unit_vector(transpose(col_ones(p))))
    d = o - contra * u / maximum(norm(u @ v), 1e-10)
    o = d * norm(o) / maximum(norm(d), 1e-10)
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

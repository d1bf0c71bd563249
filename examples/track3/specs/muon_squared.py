"""Muon squared: Adam's second moment scales the momentum before it is made orthogonal."""

from optgen.spec import (
    cols,
    hyper,
    lerp,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    rows,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2604.09967")
def MuonSquared(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    v=state("second_moment"),
    *,
    lr=hyper(0.1, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    beta2=hyper(0.95, ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.0, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """Muon of a momentum whose elements are divided by roots of their second moments."""
    require(ndim(p) == 2, "MuonSquared takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    v = lerp(v, g**2, 1 - beta2)
    u = lerp(g, m, momentum) / (sqrt(v) + eps)
    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

"""Muon as in track 3: twelve Newton-Schulz iterations, Nesterov's momentum, decoupled decay."""

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


@optimizer(paper="https://kellerjordan.github.io/posts/muon/")
def Muon(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    *,
    lr=hyper(0.025, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """Momentum made orthogonal by twelve Newton-Schulz iterations (Jordan et al., 2024)."""
    require(ndim(p) == 2, "Muon takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

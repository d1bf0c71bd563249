"""MuonH: Muon on the hyperball. Weights keep their norm, so they need no weight decay."""

from optgen.spec import (
    hyper,
    lerp,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    state,
)


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/267")
def MuonH(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    *,
    lr=hyper(0.018, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    ns_steps=hyper(12, ge=1, lt=100, whole=True),
    eps=hyper(1e-7, ge=0),
):
    """Muon that keeps the norm of weights and steps by lr times this norm (Wen, 2026)."""
    require(ndim(p) == 2, "MuonH takes matrices, not the shape {shape}")

    b = lerp(b, g, 1 - momentum)
    u = lerp(g, b, momentum)
    o = orthogonalize(u / (norm(u) + eps), ns_coefficients, ns_steps, 1)
    q = p - lr * norm(p) * o / maximum(norm(o), 1e-10)
    p = norm(p) * q / maximum(norm(q), 1e-10)

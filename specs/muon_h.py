"""MuonH: Muon's direction on the hyperball, so weights keep their norm and need no decay."""

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
    """Muon whose step is a share of the weights' norm, which stays as it is (Wen, 2026)."""
    require(ndim(p) == 2, "MuonH takes matrices, not the shape {shape}")

    b = lerp(b, g, 1 - momentum)
    u = lerp(g, b, momentum)
    o = orthogonalize(u / (norm(u) + eps), ns_coefficients, ns_steps, 1)
    q = p - lr * norm(p) * o / maximum(norm(o), 1e-10)
    p = norm(p) * q / maximum(norm(q), 1e-10)

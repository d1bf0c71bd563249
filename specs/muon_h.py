"""MuonH: Muon on the hyperball. Weights keep their norm, so they need no weight decay.

The authors add 1e-7 to the norm that an update is divided by. Here small gradients take steps of
full length.
"""

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
    eps=hyper(1e-30, ge=0, about="The least norm that an update is divided by"),
):
    """Muon that keeps the norm of weights and steps by lr times this norm (Wen, 2026)."""
    require(ndim(p) == 2, "MuonH takes matrices, not the shape {shape}")

    b = lerp(b, g, 1 - momentum)
    u = lerp(g, b, momentum)
    o = orthogonalize(u, ns_coefficients, ns_steps, eps)
    q = p - lr * norm(p) * o / maximum(norm(o), 1e-10)
    p = norm(p) * q / maximum(norm(q), 1e-10)

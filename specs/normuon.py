"""NorMuon, as zichongli5/NorMuon has it: Muon with a second moment for each row of the update.

The authors divide an update by its norm or by 1e-7. Here `ns_eps` is the least divisor, and small
gradients take steps of full length.
"""

from optgen.spec import (
    cols,
    hyper,
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
    b=state("momentum_buffer"),
    v=state("second_momentum_buffer", shape="row"),
    *,
    lr=hyper(2e-2, ge=0),
    weight_decay=hyper(0.0, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    beta2=hyper(0.95, ge=0, lt=1),
    ns_coefficients=hyper((3.4445, -4.7750, 2.0315)),
    ns_steps=hyper(5, ge=1, lt=100, whole=True),
    eps=hyper(1e-10, ge=0),
    ns_eps=hyper(1e-30, ge=0, about="The least norm that an update is divided by"),
):
    """Muon with rows scaled to one size, and the norm of the matrix kept (Li et al., 2025)."""
    require(ndim(p) == 2, "NorMuon takes matrices, not the shape {shape}")

    b = momentum * b + (1 - momentum) * g
    u = (1 - momentum) * g + momentum * b
    o = orthogonalize(u, ns_coefficients, ns_steps, ns_eps)
    v = beta2 * v + (1 - beta2) * row_mean(o**2)
    u = o / (sqrt(v) + eps)
    u = u * norm(o) / (norm(u) + eps)
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * u

"""NorMuon for each matrix of a batch: heads of an attention, experts, parts of a QKV weight."""

from optgen.spec import (
    cols,
    factored,
    hyper,
    lerp,
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
def HeadMuon(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    r=state("row_sq", shape="row"),
    *,
    lr=hyper(0.02, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    weight_decay=hyper(0.1, ge=0),
    ns_coefficients=hyper((3.4445, -4.7750, 2.0315)),
    ns_steps=hyper(5, lt=100),
    eps=hyper(1e-7),
):
    """Muon with a second moment for each row (NorMuon, Li et al., 2025), for each matrix alone."""
    require(factored(p), "HeadMuon is for matrices, not for {shape}")
    beta1, beta2 = betas

    b = lerp(b, g, 1 - beta1)
    o = orthogonalize(lerp(g, b, beta1), ns_coefficients, ns_steps, eps)
    r = lerp(r, row_mean(o**2), 1 - beta2)
    u = o / (sqrt(r) + eps)
    size = norm(u, over="matrix")
    p = p - lr * weight_decay * p
    p = p - 0.2 * lr * sqrt(rows(p) * cols(p)) * u / (size + eps)

"""RACS for matrices, as pytorch_optimizer has it."""

from optgen.spec import (
    col_mean,
    fresh,
    hyper,
    maximum,
    ndim,
    norm,
    optimizer,
    require,
    row_mean,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2502.07752")
def RACS(
    p,
    g,
    /,
    s=state("s", shape="row", dtype="at_least_float32"),
    q=state("q", shape="col", init=1, dtype="at_least_float32"),
    theta=state("theta", shape="scalar"),
    *,
    lr=hyper(1e-3, ge=0),
    beta=hyper(0.9, ge=0, lt=1),
    alpha=hyper(0.05, ge=0, about="Factor of the rate"),
    gamma=hyper(1.01, ge=1, about="How much longer than the last update one may be"),
    eps=hyper(1e-8, gt=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Gradients scaled by rows and by columns, with a bound on growth (Gong et al., 2025)."""
    require(ndim(p) == 2, "RACS is for matrices, not for {shape}")
    p = p - lr * weight_decay * p
    s = beta * s + (1 - beta) * row_mean(g**2)
    q = beta * q + (1 - beta) * col_mean(g**2)
    u = g / (sqrt(s + eps) * sqrt(q + eps))
    if not fresh(theta):
        u = u * gamma / maximum(norm(u) / (theta + eps), gamma)
    theta = norm(u)
    p = p - lr * alpha * u

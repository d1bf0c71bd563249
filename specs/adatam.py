"""AdaTAM for vectors and matrices, as pytorch_optimizer has it."""

from optgen.spec import (
    col_norm,
    factored,
    hyper,
    maximum,
    ndim,
    norm,
    optimizer,
    require,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2412.18790")
def AdaTAM(
    p,
    g,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    s=state("s"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    decay_rate=hyper(0.9, ge=0, lt=1, about="Decay of the average of correlations"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """TAM's momentum over Adam's root, without corrections of bias (Malviya et al., 2024)."""
    require(ndim(p) <= 2, "AdaTAM is for vectors and matrices, not for {shape}")
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    if factored(p):
        c = m / maximum(col_norm(m), 1e-12) * g / maximum(col_norm(g), 1e-12)
    else:
        c = m / maximum(norm(m), 1e-12) * g / maximum(norm(g), 1e-12)
    s = decay_rate * s + (1 - decay_rate) * c
    m = beta1 * m + ((1 + s) / 2 + eps) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - lr * m / (sqrt(v) + eps)

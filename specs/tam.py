"""TAM for vectors and matrices, as pytorch_optimizer has it."""

from optgen.spec import (
    col_norm,
    factored,
    fresh,
    hyper,
    maximum,
    ndim,
    norm,
    optimizer,
    require,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2412.18790")
def TAM(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    s=state("s"),
    *,
    lr=hyper(1e-3, ge=0),
    momentum=hyper(
        0.9, ge=0, lt=1, about="Fraction of the last update that is kept in the next one"
    ),
    decay_rate=hyper(0.9, ge=0, lt=1, about="Decay of the average of correlations"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Momentum that takes less of gradients that turn away from it (Malviya et al., 2024)."""
    require(ndim(p) <= 2, "TAM is for vectors and matrices, not for {shape}")
    if fresh(b):
        b = g
    if factored(p):
        c = b / maximum(col_norm(b), 1e-12) * g / maximum(col_norm(g), 1e-12)
    else:
        c = b / maximum(norm(b), 1e-12) * g / maximum(norm(g), 1e-12)
    s = decay_rate * s + (1 - decay_rate) * c
    b = momentum * b + ((1 + s) / 2 + eps) * g
    p = p - lr * weight_decay * p
    p = p - lr * b

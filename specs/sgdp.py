"""SGDP for vectors and matrices, as clovaai/AdamP and timm have it."""

from optgen.spec import (
    abs,
    cols,
    factored,
    flag,
    hyper,
    max_abs,
    maximum,
    ndim,
    norm,
    numel,
    optimizer,
    require,
    row_norm,
    row_sum,
    sqrt,
    state,
    sum,
    where,
)


@optimizer(paper="https://arxiv.org/abs/2006.08217")
def SGDP(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    *,
    lr=hyper(1e-3, ge=0),
    momentum=hyper(
        0.0, ge=0, lt=1, about="Fraction of the last update that is kept in the next one"
    ),
    dampening=hyper(0.0, ge=0, about="Fraction of the gradient that is not added to the momentum"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    delta=hyper(0.1, ge=0, about="The cosine below which weights count as scale-invariant"),
    wd_ratio=hyper(0.1, ge=0, about="Share of the decay that scale-invariant weights get"),
    nesterov=flag(False),
):
    """SGD without growth of the norm of scale-invariant weights (Heo et al., 2020)."""
    require(ndim(p) <= 2, "SGDP is for vectors and matrices, not for {shape}")

    b = momentum * b + (1 - dampening) * g
    if nesterov:
        u = g + momentum * b
    else:
        u = b

    decay = weight_decay
    if factored(p):
        row_cosine = row_sum(g * p) / maximum(row_norm(g), eps) / maximum(row_norm(p), eps)
        cosine = abs(sum(g * p)) / maximum(norm(g), eps) / maximum(norm(p), eps)
        by_row = max_abs(row_cosine) < delta / sqrt(cols(p))
        by_matrix = cosine < delta / sqrt(numel(p))
        unit_rows = p / (row_norm(p) + eps)
        unit = p / (norm(p) + eps)
        radial = where(by_row, unit_rows * row_sum(unit_rows * u), unit * sum(unit * u))
        u = where(by_row or by_matrix, u - radial, u)
        decay = where(by_row or by_matrix, wd_ratio * weight_decay, weight_decay)
    p = p - lr * decay / (1 - momentum) * p
    p = p - lr * u

"""AdamP for vectors and matrices, as clovaai/AdamP and timm have it."""

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
def AdamP(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    delta=hyper(0.1, ge=0, about="The cosine below which weights count as scale-invariant"),
    wd_ratio=hyper(0.1, ge=0, about="Share of the decay that scale-invariant weights get"),
    nesterov=flag(False),
):
    """Adam without growth of the norm of scale-invariant weights (Heo et al., 2020)."""
    require(ndim(p) <= 2, "AdamP is for vectors and matrices, not for {shape}")
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    root = sqrt(v) / sqrt(1 - beta2**t) + eps
    if nesterov:
        u = (beta1 * m + (1 - beta1) * g) / root
    else:
        u = m / root

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
    p = p - lr * decay * p
    p = p - lr / (1 - beta1**t) * u

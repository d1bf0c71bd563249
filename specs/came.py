"""CAME for matrices. The authors' form for vectors is left out."""

from optgen.spec import (
    col_mean,
    hyper,
    maximum,
    mean,
    ndim,
    optimizer,
    require,
    rms,
    row_mean,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2307.02047")
def CAME(
    p,
    g,
    /,
    m=state("exp_avg", dtype="at_least_float32"),
    r=state("exp_avg_sq_row", shape="row", dtype="at_least_float32"),
    c=state("exp_avg_sq_col", shape="col", dtype="at_least_float32"),
    r_res=state("exp_avg_res_row", shape="row", dtype="at_least_float32"),
    c_res=state("exp_avg_res_col", shape="col", dtype="at_least_float32"),
    *,
    lr=hyper(2e-4, ge=0),
    betas=hyper((0.9, 0.999, 0.9999), ge=0, lt=1),
    eps=hyper((1e-30, 1e-16), ge=0),
    clip_threshold=hyper(1.0, gt=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adafactor that shrinks updates that differ from their running mean (Luo et al., 2023)."""
    require(ndim(p) == 2, "CAME is for matrices, not for {shape}")
    beta1, beta2, beta3 = betas
    eps1, eps2 = eps

    r = beta2 * r + (1 - beta2) * row_mean(g**2 + eps1)
    c = beta2 * c + (1 - beta2) * col_mean(g**2 + eps1)
    u = g / sqrt(r / mean(r)) / sqrt(c)  # r * c may underflow
    u = u / maximum(1, rms(u) / clip_threshold)
    m = beta1 * m + (1 - beta1) * u

    residual = (u - m) ** 2 + eps2
    r_res = beta3 * r_res + (1 - beta3) * row_mean(residual)
    c_res = beta3 * c_res + (1 - beta3) * col_mean(residual)
    p = p - lr * (m / sqrt(r_res / mean(r_res)) / sqrt(c_res) + weight_decay * p)

"""AdamW for 16-bit parameters, with Kahan summation: what a store rounds away is added later."""

from optgen.spec import hyper, optimizer, rounded, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/2010.06192")
def KahanAdamW(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    c=state("compensation"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(1e-2, ge=0),
):
    """AdamW whose steps are not lost in the rounding of the parameter (Zamirai et al., 2020)."""
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    step = lr * m_hat / (sqrt(v_hat) + eps) + lr * weight_decay * p

    c = where(rounded(p + 0.5 * c) == p, c, 0) - step
    rounded_sum = rounded(p + c)
    c = c - (rounded_sum - p)
    p = rounded_sum

"""Prodigy, as its authors' package has it."""

from optgen.spec import (
    abs,
    flag,
    hyper,
    max_abs,
    maximum,
    minimum,
    optimizer,
    sqrt,
    state,
    sum,
    where,
)


@optimizer(paper="https://arxiv.org/abs/2306.06101")
def Prodigy(
    p,
    g,
    /,
    k=state("k", shape="all"),
    d=state("d", init="d0", shape="all"),
    d_max=state("d_max", init="d0", shape="all"),
    r=state("d_numerator", shape="all"),
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    s=state("s", dtype="at_least_float32"),
    x0=state("p0", init="p"),
    *,
    lr=hyper(1.0, ge=0, groups="equal or 0"),
    betas=hyper((0.9, 0.999), ge=0, lt=1, groups="equal"),
    beta3=hyper(
        None,
        optional=True,
        ge=0,
        lt=1,
        groups="equal",
        about="Decay of d's sums; None is sqrt(betas[1])",
    ),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    decouple=flag(True, about="Decay weights as AdamW does"),
    use_bias_correction=flag(False, groups="equal"),
    safeguard_warmup=flag(False, about="Leave lr out of the sum that d is divided by"),
    d0=hyper(1e-6, gt=0, groups="equal"),
    d_coef=hyper(1.0, gt=0, groups="equal"),
    growth_rate=hyper(None, optional=True, gt=1, groups="equal"),
):
    """Adam with the estimated distance to a minimum as its rate (Mishchenko & Defazio, 2023)."""
    beta1, beta2 = betas
    decay = sqrt(beta2)
    if beta3 is not None:
        decay = beta3
    scale = d
    if use_bias_correction:
        scale = scale * sqrt(1 - beta2 ** (k + 1)) / (1 - beta1 ** (k + 1))
    if weight_decay and not decouple:
        g = g + weight_decay * p

    # A group whose lr is 0 keeps its averages, and has no part in the estimate.
    if lr > 0:
        m = beta1 * m + (1 - beta1) * d * g
        v = beta2 * v + (1 - beta2) * d**2 * g**2
        if safeguard_warmup:
            s = decay * s + d / d0 * d * g
        else:
            s = decay * s + d / d0 * scale * lr * g
    inner = sum(where(lr > 0, scale * lr * g * (x0 - p), 0), over="all")
    l1_norm = sum(where(lr > 0, abs(s), 0), over="all")

    # Without any gradient so far, nothing moves.
    moves = l1_norm != 0
    rate = where(moves, scale * max_abs(lr, over="all"), 0)
    k = where(moves, k + 1, k)
    r = where(moves, decay * r + d / d0 * inner, r)
    d_hat = where(moves, d_coef * r / l1_norm, d)
    d_new = where(d == d0, maximum(d, d_hat), d)
    d_max = maximum(d_max, d_hat)
    d_next = d_max
    if growth_rate is not None:
        d_next = minimum(d_max, d_new * growth_rate)
    d = where(moves, d_next, d)
    if decouple:
        p = p - weight_decay * rate * p
    p = p - rate * m / (sqrt(v) + d * eps)

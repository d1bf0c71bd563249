"""Prodigy, as its authors' package has it."""

from optgen.spec import abs, flag, hyper, maximum, minimum, optimizer, sqrt, state, sum, where


@optimizer(paper="https://arxiv.org/abs/2306.06101")
def Prodigy(
    p,
    g,
    /,
    k=state("k", shape="group"),
    d=state("d", init="d0", shape="group"),
    d_max=state("d_max", init="d0", shape="group"),
    r=state("d_numerator", shape="group"),
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    s=state("s", dtype="at_least_float32"),
    x0=state("p0", init="p"),
    *,
    lr=hyper(1.0, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    beta3=hyper(None, optional=True, ge=0, lt=1, about="Decay of d's sums; None is sqrt(betas[1])"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    decouple=flag(True, about="Decay weights as AdamW does"),
    use_bias_correction=flag(False),
    safeguard_warmup=flag(False, about="Leave lr out of the sum that d is divided by"),
    d0=hyper(1e-6, gt=0),
    d_coef=hyper(1.0, gt=0),
    growth_rate=hyper(None, optional=True, gt=1),
):
    """Adam with the estimated distance to a minimum as its rate (Mishchenko & Defazio, 2023)."""
    beta1, beta2 = betas
    decay = sqrt(beta2)
    if beta3 is not None:
        decay = beta3
    k = k + 1
    rate = d * lr
    if use_bias_correction:
        rate = rate * sqrt(1 - beta2**k) / (1 - beta1**k)
    if weight_decay and not decouple:
        g = g + weight_decay * p

    m = beta1 * m + (1 - beta1) * d * g
    v = beta2 * v + (1 - beta2) * d**2 * g**2
    if safeguard_warmup:
        s = decay * s + d / d0 * d * g
    else:
        s = decay * s + d / d0 * rate * g
    r = decay * r + d / d0 * rate * sum(g * (x0 - p), over="all")
    l1_norm = sum(abs(s), over="all")
    d_hat = where(l1_norm > 0, d_coef * r / l1_norm, d)

    d_new = where(d == d0, maximum(d, d_hat), d)
    d_max = maximum(d_max, d_hat)
    if growth_rate is not None:
        d = minimum(d_max, d_new * growth_rate)
    else:
        d = d_max
    if decouple:
        p = p - weight_decay * rate * p
    p = p - rate * m / (sqrt(v) + d * eps)

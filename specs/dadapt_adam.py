"""D-Adaptation of Adam, as its authors' package has it."""

from optgen.spec import abs, flag, hyper, maximum, minimum, optimizer, sqrt, state, sum, where


@optimizer(paper="https://arxiv.org/abs/2301.07733")
def DAdaptAdam(
    p,
    g,
    /,
    k=state("k", shape="group"),
    d=state("d", init="d0", shape="group"),
    r=state("numerator_weighted", shape="group"),
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    s=state("s", dtype="at_least_float32"),
    *,
    lr=hyper(1.0, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    decouple=flag(False, about="Decay weights as AdamW does"),
    use_bias_correction=flag(False),
    d0=hyper(1e-6, gt=0),
    growth_rate=hyper(None, optional=True, gt=1),
):
    """Adam with the estimated distance to a minimum as its rate (Defazio & Mishchenko, 2023)."""
    beta1, beta2 = betas
    beta3 = sqrt(beta2)
    k = k + 1
    rate = d * lr
    if use_bias_correction:
        rate = rate * sqrt(1 - beta2**k) / (1 - beta1**k)
    if weight_decay and not decouple:
        g = g + weight_decay * p

    r = beta3 * r + (1 - beta3) * rate * sum(g * s / (sqrt(v) + eps), over="all")
    m = beta1 * m + (1 - beta1) * rate * g
    v = beta2 * v + (1 - beta2) * g**2
    s = beta3 * s + (1 - beta3) * rate * g
    l1_norm = sum(abs(s), over="all")
    d_hat = where(l1_norm > 0, r / ((1 - beta3) * l1_norm), d)
    if growth_rate is not None:
        d_hat = minimum(d_hat, d * growth_rate)
    d = maximum(d, d_hat)
    if decouple:
        p = p - weight_decay * rate * p
    p = p - m / (sqrt(v) + eps)

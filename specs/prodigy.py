"""Prodigy, as its authors' package has it, with decoupled weight decay and the bias correction."""

from optgen.spec import abs, hyper, maximum, minimum, optimizer, sqrt, state, sum, where


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
    v=state("exp_avg_sq"),
    s=state("s"),
    x0=state("p0", init="p"),
    *,
    lr=hyper(1.0, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    d0=hyper(1e-6, gt=0),
    d_coef=hyper(1.0, gt=0),
    growth_rate=hyper(None, optional=True, gt=1),
):
    """Adam whose step size grows with an estimate d of the distance to the solution."""
    beta1, beta2 = betas
    beta3 = sqrt(beta2)
    k = k + 1
    rate = d * lr * sqrt(1 - beta2**k) / (1 - beta1**k)

    m = beta1 * m + (1 - beta1) * d * g
    v = beta2 * v + (1 - beta2) * d**2 * g**2
    s = beta3 * s + d / d0 * rate * g
    r = beta3 * r + d / d0 * rate * sum(g * (x0 - p), over="all")
    length = sum(abs(s), over="all")
    d_hat = where(length > 0, d_coef * r / length, d)

    d_new = where(d == d0, maximum(d, d_hat), d)
    d_max = maximum(d_max, d_hat)
    if growth_rate is not None:
        d_new = d_new * growth_rate
        d = minimum(d_max, d_new)
    else:
        d = d_max
    p = p - weight_decay * rate * p
    p = p - rate * m / (sqrt(v) + d * eps)

"""Grams: the magnitude of AdamW's update, with the sign of the negative gradient."""

from optgen.spec import abs, hyper, optimizer, sign, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2412.17107")
def Grams(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Steps of AdamW's size, with the signs of the negative gradient (Cao et al., 2024)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    u = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    p = p - lr * sign(g) * abs(u)

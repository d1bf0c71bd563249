"""LaProp, as Z-T-WANG/LaProp-Optimizer and timm have it, without centering."""

from optgen.spec import hyper, optimizer, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/2002.04839")
def LaProp(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    rate=state("exp_avg_lr_1", shape="scalar"),
    *,
    lr=hyper(4e-4, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-15, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Momentum of gradients that are already divided by their size (Ziyin et al., 2020)."""
    beta1, beta2 = betas

    rate = beta1 * rate + (1 - beta1) * lr
    v = beta2 * v + (1 - beta2) * g**2
    m = beta1 * m + (1 - beta1) * lr * g / (sqrt(v / (1 - beta2**t)) + eps)
    p = p - where(rate > 0, lr / rate, 0) * m
    p = p - lr * weight_decay * p

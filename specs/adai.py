"""Adai, as zeke-xie/adaptive-inertia-adai has it; AdaiV2 has another `dampening`."""

from optgen.spec import clamp, flag, hyper, mean, optimizer, state, where


@optimizer(paper="https://arxiv.org/abs/2006.15815")
def Adai(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    product=state("beta1_prod", init=1, dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.1, 0.99), ge=0, lt=1, about="Inertia at a mean second moment, and v's decay"),
    dampening=hyper(1.0, ge=0, le=1, about="1 is Adai, less is AdaiV2"),
    eps=hyper(1e-3, ge=0, lt=1, about="How far the inertia stays below 1"),
    weight_decay=hyper(0.0, ge=0),
    decoupled=flag(False),
):
    """Momentum with more inertia where gradients are small (Xie et al., 2022)."""
    beta0, beta2 = betas

    if weight_decay:
        if decoupled:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p
    v = beta2 * v + (1 - beta2) * g**2
    v_hat = v / (1 - beta2**t)
    mean_of_all = mean(v_hat, over="all")
    share = where(mean_of_all > 0, v_hat / mean_of_all, 1)
    size = beta0 * share ** (1 / (3 - 2 * dampening))
    beta1 = clamp(1 - size, 0, 1 - eps)
    product = product * beta1
    m = beta1 * m + (1 - beta1) ** dampening * g
    p = p - lr * beta0 ** (1 - dampening) * m / (1 - product)

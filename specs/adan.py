"""Adan, as sail-sg/Adan and timm have it, without their clipping by the norm of all gradients."""

from optgen.spec import flag, fresh, hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2208.06677")
def Adan(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    d=state("exp_avg_diff"),
    n=state("exp_avg_sq", role="second_moment"),
    g_prev=state("previous_grad"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.98, 0.92, 0.99), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    no_prox=flag(False, about="Decay as AdamW does, not by a proximal step"),
):
    """Nesterov momentum of gradients and of their changes (Xie et al., 2022, Algorithm 1)."""
    beta1, beta2, beta3 = betas

    if fresh(g_prev):
        g_prev = g
    change = g - g_prev
    g_prev = g
    m = beta1 * m + (1 - beta1) * g
    d = beta2 * d + (1 - beta2) * change
    n = beta3 * n + (1 - beta3) * (g + beta2 * change) ** 2

    u = m / (1 - beta1**t) + beta2 * d / (1 - beta2**t)
    u = u / (sqrt(n / (1 - beta3**t)) + eps)
    if no_prox:
        p = p * (1 - lr * weight_decay) - lr * u
    else:
        p = (p - lr * u) / (1 + lr * weight_decay)

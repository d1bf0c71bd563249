"""diffGrad, as shivram1987/diffGrad has it."""

from optgen.spec import abs, exp, hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/1909.11015")
def DiffGrad(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    g_prev=state("previous_grad"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam with smaller steps where gradients change little (Dubey et al., 2019)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    friction = 1 / (1 + exp(-abs(g_prev - g)))
    g_prev = g
    p = p - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * friction * m / (sqrt(v) + eps)

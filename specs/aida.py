"""Aida with two projections, as guoqiang-zhang-x/Aida-Optimizer has it."""

from optgen.spec import hyper, optimizer, sqrt, state, sum


@optimizer(paper="https://arxiv.org/abs/2203.13273")
def Aida(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    s=state("exp_avg_var", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    xi=hyper(1e-20, ge=0, about="Added to squared norms, so that no divisor is 0"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """AdaBelief with a gradient and a momentum projected on each other (Zhang et al., 2022)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    g1 = sum(g * m) / (sum(g**2) + xi) * g
    m1 = sum(g * m) / (sum(m**2) + xi) * m
    g2 = sum(g1 * m1) / (sum(g1**2) + xi) * g1
    m2 = sum(g1 * m1) / (sum(m1**2) + xi) * m1
    s = beta2 * s + (1 - beta2) * (m2 - g2) ** 2 + eps
    p = p - lr * m / (1 - beta1**t) * sqrt(1 - beta2**t) / (sqrt(s) + eps)

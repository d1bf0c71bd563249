"""Ano, as Adrienkgz/ano-optimizer and pytorch_optimizer have it."""

from optgen.spec import abs, flag, hyper, log, maximum, optimizer, sign, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2508.18258")
def Ano(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.92, 0.99), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    logarithmic_schedule=flag(False, about="Let beta1 grow with the logarithm of the step"),
):
    """The direction of momentum and the size of the newest gradient (Kegreisz, 2025)."""
    beta1, beta2 = betas
    if logarithmic_schedule:
        beta1 = 1 - 1 / log(maximum(2, t))

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * sign(g**2 - v) * g**2
    p = p - lr * abs(g) * sign(m) / (sqrt(v / (1 - beta2**t)) + eps)

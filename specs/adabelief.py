"""AdaBelief, as its authors' package and timm have it, with decoupled weight decay."""

from optgen.spec import flag, hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2010.07468")
def AdaBelief(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    s=state("exp_avg_var", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-16, ge=0),
    weight_decay=hyper(0.0, ge=0),
    rectify=flag(True, about="Rectify as RAdam does"),
    degenerated_to_sgd=flag(True, about="While RAdam's variance is unknown, step by the momentum"),
):
    """Adam that divides by the deviation of gradients from their mean (Zhuang et al., 2020)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    s = beta2 * s + (1 - beta2) * (g - m) ** 2 + eps
    m_hat = m / (1 - beta1**t)
    root = sqrt(1 - beta2**t)
    if rectify:
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
        if rho >= 5:
            numerator = (rho - 4) * (rho - 2) * rho_inf
            denominator = (rho_inf - 4) * (rho_inf - 2) * rho
            p = p - lr * root * sqrt(numerator / denominator) * m_hat / (sqrt(s) + eps)
        elif degenerated_to_sgd:
            p = p - lr * m_hat
    else:
        p = p - lr * m_hat / (sqrt(s) / root + eps)

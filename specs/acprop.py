"""ACProp, as optax has it."""

from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2110.05454")
def ACProp(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    s=state("exp_avg_var", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-16, ge=0),
    eps_root=hyper(1e-16, ge=0, about="Added to the second moment in every step"),
    weight_decay=hyper(0.0, ge=0),
):
    """AdaBelief that divides by the root before this gradient (Zhuang et al., 2021)."""
    beta1, beta2 = betas

    m_old, s_old = m, s
    m = beta1 * m + (1 - beta1) * g
    s = beta2 * s + (1 - beta2) * (g - m_old) ** 2 + eps_root
    if t == 1:
        u = m
    else:
        u = m / (sqrt(s_old / (1 - beta2 ** (t - 1))) + eps)
    p = p - lr * (u + weight_decay * p)

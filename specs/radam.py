from optgen.spec import flag, hyper, optimizer, sqrt, state


@optimizer(
    paper="https://arxiv.org/abs/1908.03265",
    keywords=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "decoupled_weight_decay",
        "*",
        "foreach",
        "maximize",
        "capturable",
        "differentiable",
    ),
    group=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "maximize",
        "foreach",
        "capturable",
        "decoupled_weight_decay",
        "differentiable",
    ),
    compute_dtype="param",
)
def RAdam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0, tensor="number"),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0, ge=0),
    decoupled_weight_decay=flag(
        False, about="Shrink the parameter itself, as AdamW does, not through the gradient"
    ),
):
    """Adam with a rectified adaptive learning rate (Liu et al., 2020, Algorithm 2)."""
    beta1, beta2 = betas
    rho_inf = 2 / (1 - beta2) - 1

    if weight_decay:
        if decoupled_weight_decay:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2

    m_hat = m / (1 - beta1**t)
    rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)

    if rho > 5:  # the variance of the adaptive rate is tractable
        ell = sqrt(1 - beta2**t) / (sqrt(v) + eps)  # PyTorch: eps outside the root
        r = sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
        p = p - lr * m_hat * r * ell
    else:
        p = p - lr * m_hat

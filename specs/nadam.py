from optgen.spec import flag, hyper, optimizer, sqrt, state


@optimizer(
    paper="https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    keywords=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "momentum_decay",
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
        "momentum_decay",
        "decoupled_weight_decay",
        "maximize",
        "foreach",
        "capturable",
        "differentiable",
    ),
    compute_dtype="param",
)
def NAdam(
    p,
    g,
    t,
    /,
    mu_product=state("mu_product", shape="scalar", dtype="torch", init=1.0),
    m=state("exp_avg"),
    v=state("exp_avg_sq", role="second_moment"),
    *,
    lr=hyper(2e-3, ge=0, tensor="always"),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0, ge=0),
    momentum_decay=hyper(4e-3, ge=0, about="How fast the momentum approaches its final value"),
    decoupled_weight_decay=flag(
        False, about="Shrink the parameter itself, as AdamW does, not through the gradient"
    ),
):
    """Adam with Nesterov momentum on a decaying schedule (Dozat, 2016, Algorithm 2)."""
    beta1, beta2 = betas
    mu = beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))
    mu_next = beta1 * (1 - 0.5 * 0.96 ** ((t + 1) * momentum_decay))
    mu_product = mu_product * mu

    if weight_decay:
        if decoupled_weight_decay:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2

    g_hat = g * (1 - mu) / (1 - mu_product)
    m_hat = m * mu_next / (1 - mu_product * mu_next)
    v_hat = v / (1 - beta2**t)

    p = p - lr * (m_hat + g_hat) / (sqrt(v_hat) + eps)

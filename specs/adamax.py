from optgen.spec import abs, hyper, maximum, optimizer, state


@optimizer(
    paper="https://arxiv.org/abs/1412.6980",
    keywords=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "foreach",
        "*",
        "maximize",
        "differentiable",
        "capturable",
    ),
    group=(
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "foreach",
        "maximize",
        "differentiable",
        "capturable",
    ),
    compute_dtype="param",
)
def Adamax(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    u=state("exp_inf"),
    *,
    lr=hyper(2e-3, ge=0, tensor="always"),
    betas=hyper(
        (0.9, 0.999),
        ge=0,
        lt=1,
        about="Decay rates of the running average, and of the largest recent gradient",
    ),
    eps=hyper(1e-8, ge=0, about="Added to the size of a gradient, so that no divisor is 0"),
    weight_decay=hyper(0, ge=0),
):
    """Adam with the largest recent gradient for a denominator (Kingma & Ba, 2015, Algorithm 2)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p

    m = beta1 * m + (1 - beta1) * g
    u = maximum(beta2 * u, abs(g) + eps)  # PyTorch: eps keeps the divisor from 0

    m_hat = m / (1 - beta1**t)
    p = p - lr * m_hat / u

"""AdamS, as zeke-xie/stable-weight-decay-regularization has it."""

from optgen.spec import hyper, mean, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2011.11152")
def AdamS(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(1e-4, ge=0),
):
    """Adam whose decay has the rate of all parameters' mean step (Xie et al., 2020)."""
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    v_hat = v / (1 - beta2**t)
    p = p - lr * weight_decay / (sqrt(mean(v_hat, over="all")) + eps) * p
    p = p - lr * m / (1 - beta1**t) / (sqrt(v_hat) + eps)

"""AdaMaxW, as optax has it: AdaMax with eps in the divisor, and AdamW's decay."""

from optgen.spec import abs, hyper, maximum, optimizer, state


@optimizer(paper="https://arxiv.org/abs/1412.6980")
def AdaMaxW(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    u=state("exp_inf", dtype="at_least_float32"),
    *,
    lr=hyper(2e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(1e-4, ge=0),
):
    """Adam with the largest recent gradient for a denominator, and decoupled decay."""
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    u = maximum(beta2 * u, abs(g) + eps)
    p = p - lr * (m / (1 - beta1**t) / u + weight_decay * p)

"""AdamW for 16-bit parameters with stochastic rounding, as torchao has it."""

from optgen.spec import hyper, optimizer, random16, rounded_at_random, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2010.06192")
def StochasticAdamW(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(1e-2, ge=0),
    seed=hyper(0, ge=0),
):
    """AdamW with stochastic rounding, so that the mean of a parameter is exact."""
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    exact = p - lr * weight_decay * p - lr * m_hat / (sqrt(v_hat) + eps)
    p = rounded_at_random(exact, random16(seed, k))

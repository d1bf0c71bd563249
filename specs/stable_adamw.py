"""StableAdamW, as torch-optimi has it."""

from optgen.spec import hyper, maximum, mean, optimizer, sqrt, state


def debiased_beta(beta, t):
    """Return the decay in step t of a running mean that begins without bias."""
    return (beta**t - beta) / (beta**t - 1)


@optimizer(paper="https://arxiv.org/abs/2304.13013")
def StableAdamW(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.99), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(1e-2, ge=0),
):
    """AdamW with Adafactor's clipping of updates instead of gradients (Wortsman et al., 2023)."""
    beta1, beta2 = debiased_beta(betas[0], t), debiased_beta(betas[1], t)

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    rate = lr / maximum(1, sqrt(mean(g**2 / maximum(v, eps**2))))
    p = p - rate * weight_decay * p
    p = p - rate * m / (sqrt(v) + eps)

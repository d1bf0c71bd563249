"""QHAdam, as facebookresearch/qhoptim has it."""

from optgen.spec import flag, hyper, lerp, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/1810.06801")
def QHAdam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    nus=hyper((1.0, 1.0), ge=0, le=1, about="Shares of the running averages in both moments"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    decouple_weight_decay=flag(False),
):
    """Adam with averages of each moment and its newest value (Ma & Yarats, 2018)."""
    beta1, beta2 = betas
    nu1, nu2 = nus

    if weight_decay:
        if decouple_weight_decay:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p
    m = lerp(m, g, (1 - beta1) / (1 - beta1**t))
    v = lerp(v, g**2, (1 - beta2) / (1 - beta2**t))
    p = p - lr * lerp(g, m, nu1) / (sqrt(lerp(g**2, v, nu2)) + eps)

from optgen.spec import fresh, hyper, optimizer, sqrt, state, sum


@optimizer(paper="https://arxiv.org/abs/1905.11286")
def NovoGrad(
    p,
    g,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", shape="scalar"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.95, 0.98), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Momentum of gradients that are normalised by a second moment of each layer."""
    beta1, beta2 = betas
    norm_sq = sum(g**2)
    if fresh(v):
        v = norm_sq
    else:
        v = beta2 * v + (1 - beta2) * norm_sq
    m = beta1 * m + g / (sqrt(v) + eps) + weight_decay * p
    p = p - lr * m

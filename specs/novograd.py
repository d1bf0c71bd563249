"""NovoGrad, as NVIDIA and timm have it."""

from optgen.spec import flag, fresh, hyper, optimizer, sqrt, state, sum


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
    grad_averaging=flag(False, about="Average normalised gradients instead of adding them up"),
):
    """Momentum of gradients divided by a second moment of each layer (Ginsburg et al., 2019)."""
    beta1, beta2 = betas

    if fresh(v):
        v = sum(g**2)
    else:
        v = beta2 * v + (1 - beta2) * sum(g**2)
    u = g / (sqrt(v) + eps) + weight_decay * p
    if grad_averaging:
        u = (1 - beta1) * u
    m = beta1 * m + u
    p = p - lr * m

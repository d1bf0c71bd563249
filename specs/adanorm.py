"""AdaNorm for Adam, with decoupled decay and with Adam's place of eps."""

from optgen.spec import hyper, norm, optimizer, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/2210.06364")
def AdaNorm(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", role="second_moment"),
    e=state("exp_grad_norm", shape="scalar"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.99), ge=0, lt=1),
    r=hyper(0.95, ge=0, lt=1, about="Decay of the running average of norms of gradients"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam with gradients no shorter than they were on average (Dubey et al., 2022)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    e = r * e + (1 - r) * norm(g)
    m = beta1 * m + (1 - beta1) * where(norm(g) > 0 and e > norm(g), e / norm(g), 1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

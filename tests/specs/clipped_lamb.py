"""LAMB as NVIDIA and timm have it: they clip all gradients together."""

from optgen.spec import hyper, maximum, norm, optimizer, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/1904.00962")
def ClippedLAMB(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.01, ge=0),
    max_grad_norm=hyper(1.0, gt=0),
):
    """LAMB whose gradients are scaled together, to a norm of at most max_grad_norm."""
    beta1, beta2 = betas
    g = g / maximum(norm(g, over="all") / max_grad_norm, 1)

    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p
    trust = where(norm(p) > 0 and norm(u) > 0, norm(p) / norm(u), 1)
    p = p - lr * trust * u

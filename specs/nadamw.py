"""NAdamW, as timm and optax have it."""

from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(paper="https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ")
def NAdamW(
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
    weight_decay=hyper(0.01, ge=0),
):
    """AdamW with Nesterov momentum, and no schedule of it (Dozat, 2016)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    u = beta1 * m + (1 - beta1) * g
    p = p - lr * u / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

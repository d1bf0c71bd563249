"""EXAdam, as AhmedMostafa16/EXAdam and pytorch_optimizer have it."""

from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2412.20302")
def EXAdam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, gt=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam with corrections of each moment by the other, and the newest gradient (Adly, 2024)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    by_variance = 1 + v / (v + eps) * beta2**t
    by_mean = 1 + m**2 / (m**2 + eps) * beta1**t
    u = (m + g) / (1 - beta1**t) * by_variance
    p = p - lr * u / (sqrt(v / (1 - beta2**t) * by_mean) + eps)

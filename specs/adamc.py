"""AdamC: AdamW whose decay falls with the square of the learning rate."""

from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2506.02285")
def AdamC(
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
    weight_decay=hyper(1e-2, ge=0),
    max_lr=hyper(None, optional=True, gt=0, about="Largest lr of the schedule; None is AdamW"),
):
    """AdamW with weight decay scaled by lr / max_lr (Defazio, 2025)."""
    beta1, beta2 = betas

    if max_lr is not None:
        decay = lr / max_lr * weight_decay
    else:
        decay = weight_decay
    p = p - lr * decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

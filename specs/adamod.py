"""AdaMod, as lancopku/AdaMod has it."""

from optgen.spec import hyper, minimum, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/1910.12249")
def AdaMod(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    s=state("exp_avg_lr", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    beta3=hyper(0.999, ge=0, lt=1, about="Decay of the running average of rates"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam whose rates are at most their running average (Ding et al., 2019)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    rate = lr * sqrt(1 - beta2**t) / (1 - beta1**t) / (sqrt(v) + eps)
    s = beta3 * s + (1 - beta3) * rate
    p = p - minimum(rate, s) * m

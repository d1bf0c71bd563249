"""AdamW with its moments in 8 bits: a code for each element, a scale for each block of 256."""

from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2110.02861")
def AdamW8bit(
    p,
    g,
    t,
    /,
    m=state("exp_avg", dtype="8bit"),
    v=state("exp_avg_sq", dtype="8bit", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(1e-2, ge=0),
):
    """AdamW with a quarter of its states' bytes (Dettmers et al., 2021)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

"""AdamW everywhere, with a warmup for the matrices: result 2 (Keller Jordan).

The embedding, the head and all vectors have rates, betas and decays of their own: param groups.
"""

from optgen.spec import (
    hyper,
    lerp,
    optimizer,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/1711.05101")
def AdamW(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(0.0015, ge=0),
    betas=hyper((0.9, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.1, ge=0),
):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = lerp(m, g, 1 - beta1)
    v = lerp(v, g**2, 1 - beta2)
    p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

"""Lion, as google/automl has it."""

from optgen.spec import hyper, optimizer, sign, state


@optimizer(paper="https://arxiv.org/abs/2302.06675")
def Lion(
    p,
    g,
    /,
    m=state("exp_avg"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.9, 0.99), ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
):
    """The sign of momentum, found by a search over programs (Chen et al., 2023)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    p = p - lr * sign(beta1 * m + (1 - beta1) * g)
    m = beta2 * m + (1 - beta2) * g

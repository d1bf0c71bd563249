"""Lion with its momentum in 8 bits: a code for each element, a scale for each block of 256."""

from optgen.spec import hyper, optimizer, sign, state


@optimizer(paper="https://arxiv.org/abs/2110.02861")
def Lion8bit(
    p,
    g,
    /,
    m=state("exp_avg", dtype="8bit"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.9, 0.99), ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
):
    """Lion with a quarter of its state's bytes (Dettmers et al., 2021; Lion: Chen et al., 2023)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    p = p - lr * sign(beta1 * m + (1 - beta1) * g)
    m = beta2 * m + (1 - beta2) * g

"""Adam whose correction for means that begin at zero is a choice of each group."""

from optgen.spec import flag, hyper, lerp, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/1412.6980")
def AuxAdam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(0.01, ge=0),
    betas=hyper((0.8, 0.99), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    corrected=flag(True),
):
    """Adam for the parameters that are no matrices of blocks."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    v = lerp(v, g**2, 1 - beta2)
    if corrected:
        p = p - lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)
    else:
        p = p - lr * m / (sqrt(v) + eps)

"""PNM, as zeke-xie/Positive-Negative-Momentum and pytorch_optimizer have it."""

from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2103.17182")
def PNM(
    p,
    g,
    t,
    /,
    a=state("pos_momentum"),
    b=state("neg_momentum"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 1.0), ge=0, le=1, about="Decay of momenta, and weight of the older one"),
    weight_decay=hyper(0.0, ge=0),
):
    """The difference of momenta of odd and of even steps, for more noise (Xie et al., 2021)."""
    beta, gain = betas

    p = p - lr * weight_decay * p
    if t % 2 == 1:
        a = beta**2 * a + (1 - beta**2) * g
        u = (1 + gain) * a - gain * b
    else:
        b = beta**2 * b + (1 - beta**2) * g
        u = (1 + gain) * b - gain * a
    p = p - lr * u / sqrt((1 + gain) ** 2 + gain**2)

"""Adam with one number for each parameter's second moment, as an example of a scalar state."""

from optgen.spec import hyper, mean, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2406.16793")
def OneMoment(
    p,
    g,
    t,
    /,
    m=state("m"),
    v=state("v", shape="scalar"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam with one number for the second moment of each parameter."""
    beta1, beta2 = betas
    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * mean(g**2)
    p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

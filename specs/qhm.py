"""QHM, as facebookresearch/qhoptim has it, with the numbers that its paper recommends."""

from optgen.spec import hyper, lerp, optimizer, state


@optimizer(paper="https://arxiv.org/abs/1810.06801")
def QHM(
    p,
    g,
    /,
    m=state("momentum_buffer", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    momentum=hyper(0.999, ge=0, lt=1, about="Decay of the running average of gradients"),
    nu=hyper(0.7, ge=0, le=1, about="Share of the running average in a step"),
    weight_decay=hyper(0.0, ge=0),
):
    """A step between those of SGD and of momentum (Ma & Yarats, 2018)."""
    if weight_decay:
        g = g + weight_decay * p
    m = momentum * m + (1 - momentum) * g
    p = p - lr * lerp(g, m, nu)

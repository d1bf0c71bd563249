"""AccSGD, as rahulkidambi/AccSGD has it."""

from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/1803.05591")
def AccSGD(
    p,
    g,
    /,
    b=state("momentum_buffer", init="p"),
    *,
    lr=hyper(1e-3, ge=0),
    kappa=hyper(1000.0, gt=0, about="Long step, relative to the short one"),
    xi=hyper(10.0, ge=0, about="Advantage over SGD in statistics: at most the root of kappa"),
    constant=hyper(0.7, gt=0, lt=1, about="The authors' smallConst"),
    weight_decay=hyper(0.0, ge=0),
):
    """SGD with a short and a long step, accelerated for noisy gradients (Kidambi et al., 2018)."""
    alpha = 1 - constant**2 * xi / kappa
    beta = 1 - alpha
    zeta = constant / (constant + beta)

    if weight_decay:
        g = g + weight_decay * p
    b = alpha * b + beta * (p - lr * kappa / constant * g)
    p = zeta * (p - lr * g) + (1 - zeta) * b

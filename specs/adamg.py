"""AdamG, as pytorch_optimizer has it."""

from optgen.spec import hyper, minimum, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2405.04376")
def AdamG(
    w,
    g,
    t,
    /,
    m=state("m"),
    v=state("v", dtype="at_least_float32"),
    r=state("r"),
    *,
    lr=hyper(1.0, ge=0),
    betas=hyper((0.95, 0.999, 0.95), ge=0, lt=1),
    p=hyper(0.2, ge=0, about="Factor of the golden step"),
    q=hyper(0.24, ge=0, about="Exponent of the golden step"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam that finds its rate: steps in proportion to a power of v (Pan et al., 2024)."""
    beta1, beta2, beta3 = betas

    if weight_decay:
        g = g + weight_decay * w
    v = beta2 * v + (1 - beta2) * g**2
    r = beta3 * r + (1 - beta3) * p * v**q
    m = beta1 * m + (1 - beta1) * r * g
    rate = minimum(lr, 1 / sqrt(t))
    w = w - rate * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

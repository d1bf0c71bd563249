"""BCOS with momentum and its conditional estimator, as the paper has it."""

from optgen.spec import fresh, hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2507.08963")
def BCOS(
    p,
    g,
    /,
    m=state("m"),
    *,
    lr=hyper(1e-3, ge=0),
    beta=hyper(0.9, ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.1, ge=0),
):
    """AdamW without a second moment: momentum over its own expected size (Jiang & Xiao, 2025)."""
    if fresh(m):
        m = g
    p = p - lr * weight_decay * p
    square = (3 * beta**2 - 2 * beta**3) * m**2
    square = square + (1 - beta) ** 2 * g**2 + 2 * beta * (1 - beta) ** 2 * m * g
    m = beta * m + (1 - beta) * g
    p = p - lr * m / (sqrt(square) + eps)

"""KATE, as nazya/KATE and pytorch_optimizer have it."""

from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2403.02648")
def KATE(
    p,
    g,
    /,
    m=state("m", dtype="at_least_float32"),
    b=state("b", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    delta=hyper(0.0, ge=0, about="Weight of squared gradients in the numerator"),
    eps=hyper(1e-8, gt=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adagrad without the root, whose steps do not depend on scale (Choudhury et al., 2024)."""
    p = p - lr * weight_decay * p
    square = b**2 + g**2 + eps
    m = sqrt(m**2 + delta * g**2 + g**2 / square)
    p = p - lr * m * g / square
    b = sqrt(square)

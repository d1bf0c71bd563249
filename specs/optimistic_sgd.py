"""Optimistic gradient descent, as optax has it."""

from optgen.spec import fresh, hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/1711.00141")
def OptimisticSGD(
    p,
    g,
    /,
    g_prev=state("previous_grad"),
    *,
    lr=hyper(1e-3, ge=0),
    alpha=hyper(1.0, ge=0, about="Weight of the gradient"),
    beta=hyper(1.0, ge=0, about="Weight of its last change"),
):
    """SGD with a step along the last change of the gradient, for games (Daskalakis et al.)."""
    if fresh(g_prev):
        g_prev = g
    p = p - lr * (alpha * g + beta * (g - g_prev))
    g_prev = g

"""COCOB, as optax has it."""

from optgen.spec import abs, hyper, maximum, optimizer, state


@optimizer(paper="https://arxiv.org/abs/1705.07795")
def COCOB(
    p,
    g,
    /,
    x0=state("x0", init="p"),
    scale=state("scale", init="eps", dtype="at_least_float32"),
    total=state("cumulative_gradients", dtype="at_least_float32"),
    absolute=state("subgradients", dtype="at_least_float32"),
    reward=state("reward", dtype="at_least_float32"),
    *,
    alpha=hyper(100.0, ge=0, about="How small the first steps are"),
    eps=hyper(1e-8, gt=0, about="The first scale of gradients"),
    lr=hyper(1.0, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Weights are bets of coins, without a learning rate (Orabona & Tommasi, 2017)."""
    scale = maximum(scale, abs(g))
    absolute = absolute + abs(g)
    reward = maximum(reward - g * (p - x0), 0)
    total = total - g
    bet = total / (scale * maximum(absolute + scale, alpha * scale)) * (scale + reward)
    p = p + lr * (x0 + bet - p - weight_decay * p)

"""AdaGC for AdamW, as pytorch_optimizer has it."""

from optgen.spec import fresh, hyper, maximum, minimum, norm, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2502.11034")
def AdaGC(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    gamma=state("gamma", shape="scalar"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    beta=hyper(0.98, ge=0, lt=1, about="Decay of the running average of norms"),
    lambda_abs=hyper(1.0, gt=0, about="The largest norm of all gradients during the warmup"),
    lambda_rel=hyper(1.05, gt=0, about="The largest norm after it, relative to the average"),
    warmup_steps=hyper(100, ge=0, whole=True),
    eps=hyper(1e-8, gt=0),
    weight_decay=hyper(0.1, ge=0),
):
    """AdamW with gradients clipped to the running norm of each parameter (Wang et al., 2025)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    all_clipped = minimum(lambda_abs / (norm(g, over="all") + eps), 1) * g
    own_clipped = minimum(lambda_rel * maximum(gamma, eps) / maximum(norm(g), eps), 1) * g
    if fresh(gamma):
        g = all_clipped
        gamma = norm(all_clipped)
    elif t < warmup_steps:
        g = all_clipped
        gamma = minimum(gamma, norm(all_clipped))
    else:
        g = own_clipped
        gamma = beta * gamma + (1 - beta) * norm(own_clipped)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

"""FOCUS, as pytorch_optimizer has it."""

from optgen.spec import hyper, optimizer, sign, state


@optimizer(paper="https://arxiv.org/abs/2501.12243")
def FOCUS(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    x=state("pbar", dtype="at_least_float32"),
    *,
    lr=hyper(1e-2, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    gamma=hyper(0.1, ge=0, lt=1, about="Strength of the pull to the average of weights"),
    weight_decay=hyper(0.0, ge=0),
):
    """Signum that is drawn to the running average of weights (Liu et al., 2025)."""
    beta1, beta2 = betas

    m = beta1 * m + (1 - beta1) * g
    x = beta2 * x + (1 - beta2) * p
    x_hat = x / (1 - beta2**t)
    p = p - lr * weight_decay * x_hat
    p = p - lr * (sign(m) + gamma * sign(p - x_hat))

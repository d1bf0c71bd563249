"""AvaGrad, as the paper has it, with decoupled decay and corrections of bias."""

from optgen.spec import hyper, mean, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/1912.01823")
def AvaGrad(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    gamma=state("gamma", shape="group"),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(0.1, gt=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam with the root of older steps, and rates whose size is normalised (Savarese et al.)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    if t > 1:
        root = sqrt(v / (1 - beta2 ** (t - 1))) + eps
        p = p - gamma * lr * m / (1 - beta1**t) / root
    v = beta2 * v + (1 - beta2) * g**2
    gamma = 1 / sqrt(mean(1 / (sqrt(v / (1 - beta2**t)) + eps) ** 2, over="group"))

"""AdaBound, as Luolc/AdaBound has it.

The authors scale `final_lr` by a schedule's present rate over its first one, which is `base_lr`.
"""

from optgen.spec import clamp, hyper, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/1902.09843")
def AdaBound(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    final_lr=hyper(0.1, ge=0, about="The rate of SGD to which the bounds converge"),
    gamma=hyper(1e-3, gt=0, lt=1, about="How fast the bounds converge"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    base_lr=hyper(
        None, optional=True, gt=0, about="The lr to which final_lr belongs; None: the present one"
    ),
):
    """Adam with bounds on rates that turn it into SGD by and by (Luo et al., 2019)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2

    final = final_lr
    if base_lr is not None:
        final = final_lr * lr / base_lr
    lowest = final * (1 - 1 / (gamma * t + 1))
    highest = final * (1 + 1 / (gamma * t))
    rate = lr * sqrt(1 - beta2**t) / (1 - beta1**t) / (sqrt(v) + eps)
    p = p - clamp(rate, lowest, highest) * m

"""AdaPNM, as zeke-xie/Positive-Negative-Momentum and pytorch_optimizer have it."""

from optgen.spec import flag, hyper, maximum, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2103.17182")
def AdaPNM(
    p,
    g,
    t,
    /,
    a=state("exp_avg"),
    b=state("neg_exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    v_max=state("max_exp_avg_sq", when="amsgrad", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999, 1.0), ge=0, le=1, about="Decays, and weight of the older momentum"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    amsgrad=flag(True, about="Divide by the largest second moment so far, not by the present one"),
):
    """Adam with the difference of momenta of odd and of even steps (Xie et al., 2021)."""
    beta1, beta2, gain = betas

    p = p - lr * weight_decay * p
    if t % 2 == 1:
        a = beta1**2 * a + (1 - beta1**2) * g
        u = (1 + gain) * a - gain * b
    else:
        b = beta1**2 * b + (1 - beta1**2) * g
        u = (1 + gain) * b - gain * a
    u = u / sqrt((1 + gain) ** 2 + gain**2)
    v = beta2 * v + (1 - beta2) * g**2
    if amsgrad:
        v_max = maximum(v_max, v)
        root = (sqrt(v_max) + eps) / sqrt(1 - beta2**t)
    else:
        root = (sqrt(v) + eps) / sqrt(1 - beta2**t)
    p = p - lr / (1 - beta1**t) * u / root

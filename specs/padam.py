"""Padam, as uclaml/Padam has it."""

from optgen.spec import flag, hyper, maximum, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/1806.06763")
def Padam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    v_max=state("max_exp_avg_sq", when="amsgrad", dtype="at_least_float32"),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    amsgrad=flag(True, about="Divide by the largest second moment so far, not by the present one"),
    partial=hyper(0.25, ge=0, le=0.5, about="Exponent of the second moment; 0.5 is Adam, 0 is SGD"),
):
    """Adam or AMSGrad with a power of the second moment below 1/2 (Chen et al., 2018)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    if amsgrad:
        v_max = maximum(v_max, v)
        root = sqrt(v_max) + eps
    else:
        root = sqrt(v) + eps
    p = p - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / root ** (2 * partial)

"""MARS with AdamW's step, as AGI-Arena/MARS has it.

Parameters that are not matrices take AdamW's steps, unless `optimize_1d`.
"""

from optgen.spec import flag, hyper, maximum, ndim, norm, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2411.10438")
def MARS(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", role="second_moment"),
    g_prev=state("last_grad"),
    *,
    lr=hyper(3e-3, ge=0),
    betas=hyper((0.95, 0.99), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    gamma=hyper(0.025, ge=0),
    optimize_1d=flag(False),
    lr_1d_factor=hyper(1.0, ge=0, about="The authors' lr_1d, as a share of lr"),
    betas_1d=hyper((0.9, 0.95), ge=0, lt=1),
    weight_decay_1d=hyper(0.1, ge=0),
):
    """AdamW on gradients corrected by their last change, for less variance (Yuan et al., 2024)."""
    if optimize_1d or ndim(p) == 2:
        beta1, beta2 = betas
        rate, decay = lr, weight_decay
        c = g + gamma * beta1 / (1 - beta1) * (g - g_prev)
        c = c / maximum(norm(c), 1)
    else:
        beta1, beta2 = betas_1d
        rate, decay = lr * lr_1d_factor, weight_decay_1d
        c = g
    g_prev = g

    m = beta1 * m + (1 - beta1) * c
    v = beta2 * v + (1 - beta2) * c**2
    u = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    p = p - rate * (decay * p + u)

"""ADOPT with clipping, as iShohei220/adopt has it.

The authors' `clip_lambda` is a function of the step; here it is `step**clip_exp`. timm has
`clip_exp=0.333` and calls `decouple` `decoupled`.
"""

from optgen.spec import clamp, flag, fresh, hyper, maximum, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2411.02853")
def ADOPT(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.9999), ge=0, lt=1),
    eps=hyper(1e-6, ge=0),
    clip_exp=hyper(
        0.25, optional=True, ge=0, about="Exponent of the step count in the limit; None: no limit"
    ),
    weight_decay=hyper(0.0, ge=0),
    decouple=flag(False),
):
    """Adam that divides by the previous v, to converge for any beta2 (Taniguchi et al., 2024)."""
    beta1, beta2 = betas

    if weight_decay and not decouple:
        g = g + weight_decay * p
    if fresh(v):
        v = g**2
    else:
        if weight_decay and decouple:
            p = p - lr * weight_decay * p
        u = g / maximum(sqrt(v), eps)
        if clip_exp is not None:
            limit = (t - 1) ** clip_exp
            u = clamp(u, -limit, limit)
        m = beta1 * m + (1 - beta1) * u
        p = p - lr * m
        v = beta2 * v + (1 - beta2) * g**2

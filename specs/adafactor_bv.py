"""Adafactor of Big Vision, as timm has it.

timm factors the two largest axes, unless one has fewer than 16 elements, and keeps the momentum in
bfloat16. Here all matrices are factored, and the momentum has the parameter's dtype.
"""

from optgen.spec import (
    col_mean,
    factored,
    flag,
    hyper,
    lerp,
    maximum,
    minimum,
    optimizer,
    rms,
    row_mean,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2106.04560")
def AdafactorBV(
    p,
    g,
    t,
    /,
    r=state("exp_avg_sq_r", shape="row", dtype="at_least_float32", when="factored"),
    c=state("exp_avg_sq_c", shape="col", dtype="at_least_float32", when="factored"),
    v=state("exp_avg_sq", dtype="at_least_float32", when="not factored"),
    m=state("exp_avg", when="momentum"),
    *,
    lr=hyper(1.0, ge=0),
    decay_rate=hyper(0.8, ge=0),
    decay_offset=hyper(0, ge=0, whole=True),
    beta2_cap=hyper(0.999, ge=0, lt=1),
    momentum=hyper(0.9, optional=True, ge=0, lt=1),
    eps=hyper(1e-30, ge=0),
    weight_decay=hyper(0.0, ge=0),
    clipping_threshold=hyper(None, optional=True, gt=0),
    unscaled_wd=flag(False, about="Decay by `weight_decay` alone, not times `lr`"),
    max_lr=hyper(None, optional=True, gt=0, about="Largest rate, for a decay by `lr**2 / max_lr`"),
):
    """Adafactor at given rates, with momentum, for large vision models (Zhai et al., 2021)."""
    beta2 = minimum(beta2_cap, 1 - maximum(t - decay_offset, 1) ** -decay_rate)
    square = g**2 + eps
    if factored(p):
        r, c = lerp(r, row_mean(square), 1 - beta2), lerp(c, col_mean(square), 1 - beta2)
        u = g / sqrt(r / col_mean(r)) / sqrt(c)  # r * c may underflow
    else:
        v = lerp(v, square, 1 - beta2)
        u = g / sqrt(v)
    if clipping_threshold:
        u = u / maximum(1, rms(u) / clipping_threshold)
    if momentum:
        m = lerp(m, u, 1 - momentum)
        u = m

    if unscaled_wd:
        decay = weight_decay
    else:
        decay = lr * weight_decay
    if max_lr:
        decay = decay * lr / max_lr
    p = p - decay * p - lr * u

"""Adafactor in the form of its authors, fairseq and Hugging Face; lr=None means relative steps.

torch's Adafactor is another rule: it adds no eps to squares, has no momentum, and decays weights by
lr.
"""

from optgen.spec import (
    col_mean,
    factored,
    flag,
    hyper,
    maximum,
    minimum,
    optimizer,
    rms,
    row_mean,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/1804.04235")
def AdafactorHF(
    p,
    g,
    t,
    /,
    m=state("exp_avg", dtype="at_least_float32", when="beta1"),
    r=state("exp_avg_sq_row", shape="row", dtype="at_least_float32", when="factored"),
    c=state("exp_avg_sq_col", shape="col", dtype="at_least_float32", when="factored"),
    v=state("exp_avg_sq", dtype="at_least_float32", when="not factored"),
    *,
    lr=hyper(
        None, optional=True, ge=0, about="Learning rate; None is 1 / sqrt(step), at most 1e-2"
    ),
    eps=hyper((1e-30, 1e-3), ge=0),
    clip_threshold=hyper(1.0, gt=0),
    decay_rate=hyper(-0.8, le=0),
    beta1=hyper(None, optional=True, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
    scale_parameter=flag(True, about="Let steps be a share of the parameter's root mean square"),
    warmup_init=flag(False, about="With lr=None, let the rate grow by 1e-6 a step at first"),
):
    """Second moments of rows and columns of a matrix, clipped steps (Shazeer & Stern, 2018)."""
    eps1, eps2 = eps
    beta2 = 1 - t**decay_rate

    if lr is not None:
        rate = lr
    elif warmup_init:
        rate = minimum(1e-6 * t, 1 / sqrt(t))
    else:
        rate = minimum(1e-2, 1 / sqrt(t))

    square = g**2 + eps1
    if factored(p):
        r = beta2 * r + (1 - beta2) * row_mean(square)
        c = beta2 * c + (1 - beta2) * col_mean(square)
        u = g / sqrt(r / col_mean(r)) / sqrt(c)  # r * c may underflow
    else:
        v = beta2 * v + (1 - beta2) * square
        u = g / sqrt(v)
    u = u / maximum(1, rms(u) / clip_threshold)

    if scale_parameter:
        u = u * rate * maximum(eps2, rms(p))
        decay = weight_decay * rate * maximum(eps2, rms(p))
    else:
        u = u * rate
        decay = weight_decay * rate
    if beta1:
        m = beta1 * m + (1 - beta1) * u
        u = m
    p = p - decay * p - u

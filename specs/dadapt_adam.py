"""D-Adaptation of Adam, as its authors' package has it."""

from optgen.spec import (
    abs,
    flag,
    hyper,
    max_abs,
    maximum,
    minimum,
    optimizer,
    sqrt,
    state,
    sum,
    where,
)


@optimizer(paper="https://arxiv.org/abs/2301.07733")
def DAdaptAdam(
    p,
    g,
    /,
    k=state("k", shape="all"),
    d=state("d", init="d0", shape="all"),
    r=state("numerator_weighted", shape="all"),
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    s=state("s", dtype="at_least_float32"),
    *,
    lr=hyper(1.0, ge=0, groups="equal or 0"),
    betas=hyper((0.9, 0.999), ge=0, lt=1, groups="equal"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
    decouple=flag(False, about="Decay weights as AdamW does"),
    use_bias_correction=flag(False, groups="equal"),
    d0=hyper(1e-6, gt=0, groups="equal"),
    growth_rate=hyper(None, optional=True, gt=1, groups="equal"),
    layer_scale=hyper(1.0, ge=0, about="Factor on the steps of a group"),
):
    """Adam with the estimated distance to a minimum as its rate (Defazio & Mishchenko, 2023)."""
    beta1, beta2 = betas
    beta3 = sqrt(beta2)
    scale = d
    if use_bias_correction:
        scale = scale * sqrt(1 - beta2 ** (k + 1)) / (1 - beta1 ** (k + 1))
    if weight_decay and not decouple:
        g = g + weight_decay * p

    # A group whose lr is 0 keeps its averages, and has no part in the estimate.
    step_size = layer_scale * scale * lr
    inner = sum(where(lr > 0, step_size * g * s / (sqrt(v) + eps), 0), over="all")
    if lr > 0:
        m = beta1 * m + (1 - beta1) * step_size * g
        v = beta2 * v + (1 - beta2) * g**2
        s = beta3 * s + (1 - beta3) * scale * lr * g
    l1_norm = sum(where(lr > 0, layer_scale * abs(s), 0), over="all")

    # Without any gradient so far, nothing moves.
    moves = l1_norm != 0
    rate = where(moves, scale * max_abs(lr, over="all"), 0)
    k = where(moves, k + 1, k)
    r = where(moves, beta3 * r + (1 - beta3) * inner, r)
    d_hat = where(moves, r / ((1 - beta3) * l1_norm), d)
    if growth_rate is not None:
        d_hat = minimum(d_hat, d * growth_rate)
    d = maximum(d, d_hat)
    if decouple:
        p = p - weight_decay * rate * p
    p = p - where(moves, 1, 0) * m / (sqrt(v) + eps)

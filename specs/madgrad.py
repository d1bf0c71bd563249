"""MADGRAD, as facebookresearch/madgrad and timm have it."""

from optgen.spec import flag, hyper, lerp, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2101.11075")
def MADGRAD(
    p,
    g,
    t,
    /,
    v=state("grad_sum_sq", dtype="at_least_float32"),
    s=state("s", dtype="at_least_float32"),
    x0=state("x0", init="p"),
    *,
    lr=hyper(1e-2, ge=0),
    momentum=hyper(0.9, ge=0, lt=1, about="Share of the old weights in the new ones"),
    eps=hyper(1e-6, ge=0),
    weight_decay=hyper(0.0, ge=0),
    decoupled_decay=flag(False),
):
    """Dual averages of gradients around the first weights (Defazio & Jelassi, 2021)."""
    if weight_decay:
        if decoupled_decay:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p
    weight = (lr + eps) * sqrt(t)
    v = v + weight * g**2
    s = s + weight * g
    p = lerp(p, x0 - s / (v ** (1 / 3) + eps), 1 - momentum)

"""DualAdam, as LongJin-lab/DualAdam and pytorch_optimizer have it."""

from optgen.spec import hyper, lerp, maximum, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2603.07122")
def DualAdam(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    switch_rate=hyper(0.01, ge=0, le=1, about="Share of InverseAdam that each step takes away"),
    eps=hyper(1e-8, gt=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Steps that multiply by Adam's root at first, and divide by it later (2026)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    root = sqrt(v / (1 - beta2**t)) + eps
    share = maximum(0, 1 - t * switch_rate)
    if share >= switch_rate:
        factor = lerp(1 / root, root, share)
    else:
        factor = 1 / root
    p = p - lr * m / (1 - beta1**t) * factor

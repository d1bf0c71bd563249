"""AdamW with Grokfast's filter, as lucidrains/grokfast-pytorch has it."""

from optgen.spec import flag, fresh, hyper, lerp, maximum, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2405.20233")
def GrokFastAdamW(
    p,
    g,
    t,
    /,
    m=state("exp_avg", dtype="at_least_float32"),
    v=state("exp_avg_sq", dtype="at_least_float32"),
    slow=state("grok_exp_avg", dtype="at_least_float32"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.9, 0.99), ge=0, lt=1),
    grokfast_alpha=hyper(0.98, ge=0, lt=1, about="Decay of the mean of slow gradients"),
    grokfast_lamb=hyper(2.0, ge=0, about="Factor of the slow gradients that are added"),
    grokfast_after_step=hyper(0, ge=0, whole=True),
    normalize_lr=flag(True, about="Divide the rate by `1 + grokfast_lamb`"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """AdamW on gradients whose slow part is amplified (Lee et al., 2024)."""
    beta1, beta2 = betas
    if normalize_lr:
        rate = lr / (1 + grokfast_lamb)
    else:
        rate = lr

    if fresh(slow):
        slow = g
    if t > grokfast_after_step:
        slow = lerp(slow, g, 1 - grokfast_alpha)
        g = g + grokfast_lamb * slow
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    p = p - rate * weight_decay * p
    p = p - rate * m / (1 - beta1**t) / maximum(sqrt(v / (1 - beta2**t)), eps)

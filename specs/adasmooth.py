"""AdaSmooth, as pytorch_optimizer has it."""

from optgen.spec import abs, hyper, lerp, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2204.00825")
def AdaSmooth(
    p,
    g,
    /,
    v=state("exp_avg_sq", dtype="at_least_float32", role="second_moment"),
    s=state("s", dtype="at_least_float32"),
    n=state("n", dtype="at_least_float32"),
    x=state("prev_param", init="p"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.5, 0.99), ge=0, lt=1, about="Decays of v for straight and for winding paths"),
    eps=hyper(1e-6, gt=0),
    weight_decay=hyper(0.0, ge=0),
):
    """RMSprop whose decay depends on how straight each weight has moved (Lu, 2022)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p
    s = s + (p - x)
    n = n + abs(p - x)
    straightness = abs(s) / (n + eps)
    c = straightness * (beta2 - beta1) + (1 - beta2)
    v = lerp(v, g**2, c**2)
    x = p
    p = p - lr * g / sqrt(v + eps)

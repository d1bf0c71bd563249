"""StoSignSGD: random signs, whose mean is the momentum in the unit of its largest size."""

from optgen.spec import abs, hyper, lerp, maximum, optimizer, random, sign, state


@optimizer(paper="https://arxiv.org/abs/2604.15416")
def StoSignSGD(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    largest=state("max_exp_avg"),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(1e-4, ge=0),
    beta1=hyper(0.9, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
    seed=hyper(0, ge=0, whole=True),
):
    """Signs of the momentum and noise as large as it has ever been (Yu et al., 2026)."""
    m = lerp(m, g, 1 - beta1)
    largest = maximum(largest, abs(m))
    p = p - lr * sign(m + largest * (2 * random(seed, k) - 1)) - lr * weight_decay * p

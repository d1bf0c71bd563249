"""Yogi, as torch-optimizer has it: both moments begin at a small number."""

from optgen.spec import hyper, optimizer, sign, sqrt, state


@optimizer(paper="https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization")
def Yogi(
    p,
    g,
    t,
    /,
    m=state("exp_avg", init="initial_accumulator"),
    v=state(
        "exp_avg_sq", init="initial_accumulator", dtype="at_least_float32", role="second_moment"
    ),
    *,
    lr=hyper(1e-2, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-3, ge=0),
    initial_accumulator=hyper(1e-6, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam whose second moment changes by a gradient's square at most (Zaheer et al., 2018)."""
    beta1, beta2 = betas

    if weight_decay:
        g = g + weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    v = v - (1 - beta2) * sign(v - g**2) * g**2
    p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)

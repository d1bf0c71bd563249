"""AdamH: Adam on the hyperball. Weights keep their norm, so they need no weight decay."""

from optgen.spec import hyper, lerp, maximum, norm, optimizer, sqrt, state


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/272")
def AdamH(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(5e-3, ge=0),
    betas=hyper((0.9, 0.95), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
):
    """Adam that keeps the norm of the weights; steps have lr times this norm (Wen et al., 2025)."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    v = lerp(v, g**2, 1 - beta2)
    u = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    q = p - lr * norm(p) * u / maximum(norm(u), 1e-10)
    p = norm(p) * q / maximum(norm(q), 1e-10)

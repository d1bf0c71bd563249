"""AdamH with auxiliary AdamW: result 4 (Kaiyue Wen).

New: the weights keep their norm (hyperball), and a step is a share of it. The group's flag `aux`
sends its parameters to AdamW; the others are matrices.
"""

from optgen.spec import (
    flag,
    hyper,
    lerp,
    maximum,
    norm,
    optimizer,
    sqrt,
    state,
)


def on_sphere(p, u, lr):
    """Move by a share of the norm, and return to the sphere where the weights were."""
    q = p - lr * u * norm(p) / maximum(norm(u), 1e-10)
    return q / maximum(norm(q), 1e-10) * norm(p)


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/272")
def AdamH(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(0.018, ge=0),
    betas=hyper((0.9, 0.95), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    aux=flag(False),
):
    """Adam whose steps stay on the sphere of the weights; AdamW for the rest."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    v = lerp(v, g**2, 1 - beta2)
    u = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    if aux:
        p = p - lr * u
    else:
        p = on_sphere(p, u, lr)

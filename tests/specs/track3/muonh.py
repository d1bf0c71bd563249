"""MuonH with auxiliary AdamW: result 5 (Kaiyue Wen).

New: Muon's step on the sphere of the weights (hyperball), instead of decay. The group's flag `aux`
sends its parameters to AdamW; the others are matrices.
"""

from optgen.spec import (
    factored,
    flag,
    hyper,
    lerp,
    maximum,
    norm,
    optimizer,
    orthogonalize,
    sqrt,
    state,
)


def on_sphere(p, u, lr):
    """Move by a share of the norm, and return to the sphere where the weights were."""
    q = p - lr * u * norm(p) / maximum(norm(u), 1e-10)
    return q / maximum(norm(q), 1e-10) * norm(p)


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/267")
def MuonH(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq", when="aux"),
    *,
    lr=hyper(0.018, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    eps=hyper(1e-10, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    aux=flag(False),
):
    """Muon whose steps stay on the sphere of the weights; AdamW for the rest."""
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    if aux:
        v = lerp(v, g**2, 1 - beta2)
        p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)
    elif factored(p):
        u = lerp(g, m, beta1)
        p = on_sphere(p, orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1), lr)

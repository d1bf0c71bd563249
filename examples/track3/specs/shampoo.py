"""Distributed Shampoo, grafted on Adam, as in Meta's package.

The inverse fourth roots of both covariances, computed in every fifth step, give a direction, and
Adam gives its length. Until the first roots are computed, Adam also gives the direction.
"""

from optgen.spec import (
    hyper,
    inverse_root,
    lerp,
    ndim,
    norm,
    optimizer,
    require,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2309.06497")
def Shampoo(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    L=state("gram_left", shape=("rows", "rows")),
    R=state("gram_right", shape=("cols", "cols")),
    A=state("root_left", shape=("rows", "rows")),
    B=state("root_right", shape=("cols", "cols")),
    *,
    lr=hyper(0.0015, ge=0),
    betas=hyper((0.9, 0.95), ge=0, lt=1),
    eps=hyper(1e-12, ge=0),
    adam_eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.2, ge=0),
    precondition_frequency=hyper(5, ge=1, whole=True),
):
    """Shampoo in steps of Adam's length (Anil et al., 2020; Shi et al., 2023)."""
    require(ndim(p) == 2, "Shampoo takes matrices, not the shape {shape}")
    beta1, beta2 = betas
    correction = 1 - beta2**t

    m = lerp(m, g, 1 - beta1)
    v = lerp(v, g**2, 1 - beta2)
    L = lerp(L, g @ transpose(g), 1 - beta2)
    R = lerp(R, transpose(g) @ g, 1 - beta2)
    if t % precondition_frequency == 0:
        A = inverse_root(L / correction, 4, eps)
        B = inverse_root(R / correction, 4, eps)

    d = m / (1 - beta1**t)
    u = d / (sqrt(v / correction) + adam_eps)
    if t >= precondition_frequency:
        y = A @ d @ B
        u = y * norm(u) / (norm(y) + 1e-16)
    p = p - lr * (u + weight_decay * p)

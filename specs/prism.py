"""PRISM, as optax has it, with an exact root.

The step is the upper part of the polar factor of the momentum over the innovation. optax iterates
on the stack of both. Here a root of its Gram matrix is computed.
"""

from optgen.spec import (
    cols,
    flag,
    hyper,
    inverse_root,
    lerp,
    maximum,
    ndim,
    optimizer,
    require,
    rows,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2602.03096")
def PRISM(
    p,
    g,
    /,
    m=state("mu", dtype="at_least_float32"),
    *,
    lr=hyper(0.02, ge=0),
    beta=hyper(0.95, ge=0, lt=1),
    gamma=hyper(1.0, ge=0, about="Weight of what the momentum did not predict"),
    nesterov=flag(True),
    eps=hyper(1e-12, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Momentum whitened with what it did not predict (Yang, 2026)."""
    require(ndim(p) == 2, "PRISM takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - beta)
    d = gamma * (g - m)
    if nesterov:
        u = lerp(g, m, beta)
    else:
        u = m
    u = u @ inverse_root(transpose(u) @ u + transpose(d) @ d, 2, eps)
    size = 0.2 * sqrt(maximum(rows(p), cols(p)))  # 0.2: as large as Adam's steps
    p = p - lr * (size * u + weight_decay * p)

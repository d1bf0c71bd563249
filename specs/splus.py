"""SPlus, as kvfrans/splus has it: signs in the eigenbases of Shampoo.

The authors keep a mean that begins at 0, and divide it when it is shown. Here the mean is divided
at once. A convolution takes a flat view: `"view": (channels, -1)`.
"""

from optgen.spec import (
    cols,
    eigenvectors,
    factored,
    fresh,
    hyper,
    identity,
    lerp,
    ndim,
    optimizer,
    require,
    rows,
    sign,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2506.07254")
def SPlus(
    p,
    g,
    t,
    /,
    m=state("momentum"),
    x=state("ema", dtype="at_least_float32"),
    L=state(
        "gram_left", shape=("rows", "rows"), dtype="at_least_float32", when="rows(p) <= max_dim"
    ),
    R=state(
        "gram_right", shape=("cols", "cols"), dtype="at_least_float32", when="cols(p) <= max_dim"
    ),
    U=state(
        "basis_left", shape=("rows", "rows"), dtype="at_least_float32", when="rows(p) <= max_dim"
    ),
    W=state(
        "basis_right", shape=("cols", "cols"), dtype="at_least_float32", when="cols(p) <= max_dim"
    ),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    ema_rate=hyper(0.999, ge=0, lt=1, about="Decay of the mean that `eval` shows"),
    inverse_every=hyper(100, ge=1, whole=True),
    weight_decay=hyper(1e-2, ge=0),
    max_dim=hyper(10000, ge=1, whole=True, about="Largest side that gets a basis"),
    nonstandard_constant=hyper(1e-3, ge=0, about="Factor of the rate of all but such matrices"),
):
    """Signs in slowly changing eigenbases, at rates by shape (Frans et al., 2025)."""
    require(ndim(p) <= 2, "SPlus takes matrices and vectors, not the shape {shape}: give it a view")
    beta1, beta2 = betas
    rate = lr * nonstandard_constant
    if factored(p) and rows(p) <= max_dim and cols(p) <= max_dim:
        rate = lr * 2 / (rows(p) + cols(p))

    m = lerp(m, g, 1 - beta1)
    u = m
    if factored(p):
        if rows(p) <= max_dim:
            L = lerp(L, g @ transpose(g), 1 - beta2)
            if fresh(U):
                U = identity(U)
            u = transpose(U) @ u
        if cols(p) <= max_dim:
            R = lerp(R, transpose(g) @ g, 1 - beta2)
            if fresh(W):
                W = identity(W)
            u = u @ W
    u = sign(u)
    if factored(p):
        if rows(p) <= max_dim:
            u = U @ u
            if t == 1 or t % inverse_every == 0:
                U = eigenvectors(L)
        if cols(p) <= max_dim:
            u = u @ transpose(W)
            if t == 1 or t % inverse_every == 0:
                W = eigenvectors(R)
    p = p - rate * u
    x = lerp(x, p, (1 - ema_rate) / (1 - ema_rate**t))
    p = p - rate * weight_decay * p


@SPlus.train
def to_last(p, x, /):
    """Exchange the mean and the last parameters."""
    p, x = x, p


@SPlus.eval
def to_mean(p, x, /):
    """Exchange the last parameters and their mean."""
    p, x = x, p

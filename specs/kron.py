"""PSGD with Kronecker factors, as KWNS4 of lixilinx/psgd_torch has it with dense factors.

The authors bound spectral norms from below by random vectors. Here the norms are exact. The authors
update the factors in a random share of the steps, and balance them in a hundredth of these. Here
both happen at fixed intervals.

The authors recommend to lower `lr_preconditioner` soon from 0.5 to between 0.01 and 0.1, and to
update the factors in a share of the steps that falls from 1 to between 0.01 and 0.1. Set both
in the param group: `group["lr_preconditioner"]` and `group["update_every"]` while training.
"""

from optgen.spec import (
    abs,
    clamp,
    cols,
    eigenvalues,
    fresh,
    gaussian,
    hyper,
    identity,
    lerp,
    max_abs,
    maximum,
    minimum,
    ndim,
    optimizer,
    require,
    rms,
    rows,
    sqrt,
    state,
    trace,
    transpose,
    where,
)

TINY = 2.0**-126  # the smallest normal number of float32


def rotate(q):
    """Return the factor after a rotation towards a symmetric matrix."""
    r = transpose(q) - q
    r = r / (sqrt(max_abs(eigenvalues(transpose(r) @ r))) + TINY)
    first, second = trace(r @ q), trace(r @ r @ q)
    a = where(second < 0, minimum(-first / second, 1 / 8), 1 / 8)
    return q + a * (r @ q + 0.5 * a * (r @ r @ q))


@optimizer(paper="https://arxiv.org/abs/1512.04202")
def Kron(
    p,
    g,
    t,
    /,
    m=state("ema"),
    U=state("Q_left", shape=("rows", "rows")),
    W=state("Q_right", shape=("cols", "cols")),
    a=state("L_left", shape="row", dtype="at_least_float32"),
    b=state("L_right", shape="col", dtype="at_least_float32"),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(2e-4, ge=0),
    lr_preconditioner=hyper(0.5, gt=0, lt=1),
    betaL=hyper(0.9, ge=0, le=1),
    damping=hyper(1e-9, ge=0),
    momentum=hyper(0.9, ge=0, le=1),
    weight_decay=hyper(0.05, ge=0),
    grad_clip_max_amps=hyper((2.0, 10.0), ge=1),
    preconditioner_init_scale=hyper(1.0, gt=0),
    update_every=hyper(
        1, ge=1, whole=True, about="Steps from one update of the factors to the next"
    ),
    seed=hyper(0, ge=0, whole=True),
):
    """Whitening by two factors, fitted without inverses (Li, 2015; Pooladzandi & Li, 2024)."""
    require(ndim(p) == 2, "Kron takes matrices, not the shape {shape}")
    max_average, max_element = grad_clip_max_amps

    p = p - lr * weight_decay * p
    m = lerp(m, g, 1 - minimum((t - 1) / t, momentum))
    if fresh(U):
        U = sqrt(preconditioner_init_scale) * identity(U)
        W = sqrt(preconditioner_init_scale) * identity(W)
    if (t - 1) % update_every == 0:
        x = m + (damping + 2**-24 * abs(m)) * gaussian(m, seed, k)
        x = transpose(U) @ U @ x @ transpose(W) @ W
        y, z = x @ transpose(x), transpose(x) @ x
        bound = max_abs(eigenvalues(y)) + cols(p)
        a = maximum(lerp(a, bound, 1 - betaL), bound)
        U = rotate(U - lr_preconditioner * (y @ U - cols(p) * U) / a)
        bound = max_abs(eigenvalues(z)) + rows(p)
        b = maximum(lerp(b, bound, 1 - betaL), bound)
        W = rotate(W - lr_preconditioner * (z @ W - rows(p) * W) / b)
    u = transpose(U) @ U @ m @ transpose(W) @ W
    u = u * minimum(max_average / rms(u), 1)
    p = p - lr * clamp(u, -max_element, max_element)
    if (t - 1) % (100 * update_every) == 0 and t > 1:
        balance = sqrt(max_abs(W) / max_abs(U))
        U, W = U * balance, W / balance

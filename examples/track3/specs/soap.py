"""SOAP without bias correction, whose bases are updated in each step.

The covariances begin at zero, and the first bases are those of the first gradient.
"""

from optgen.spec import (
    descending,
    eigenvalues,
    eigenvectors,
    hyper,
    lerp,
    ndim,
    optimizer,
    qr,
    require,
    sqrt,
    state,
    transpose,
)


def descending_eigenvectors(x):
    """Return the eigenvectors, ordered by descending eigenvalues."""
    return eigenvectors(x) @ transpose(descending(eigenvalues(x)))


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/302")
def SOAP(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    L=state("gram_left", shape=("rows", "rows")),
    R=state("gram_right", shape=("cols", "cols")),
    U=state("basis_left", shape=("rows", "rows")),
    W=state("basis_right", shape=("cols", "cols")),
    *,
    lr=hyper(0.018, ge=0),
    betas=hyper((0.95, 0.9), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    precondition_frequency=hyper(1, ge=1, whole=True),
):
    """Adam without bias correction in the eigenbasis of the gradient's covariances."""
    require(ndim(p) == 2, "SOAP takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    if t == 1:
        U, W = descending_eigenvectors(g @ transpose(g)), descending_eigenvectors(transpose(g) @ g)
    m = lerp(m, g, 1 - beta1)
    L = lerp(L, g @ transpose(g), 1 - beta2)
    R = lerp(R, transpose(g) @ g, 1 - beta2)
    v = lerp(v, (transpose(U) @ g @ W) ** 2, 1 - beta2)
    u = U @ (transpose(U) @ m @ W / (sqrt(v) + eps)) @ transpose(W)
    if t % precondition_frequency == 0:
        U, W = qr(L @ U), qr(R @ W)
    p = p - lr * u

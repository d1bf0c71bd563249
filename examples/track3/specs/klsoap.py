"""KL-SOAP: before each covariance is computed, the other covariance whitens the gradient.

The momentum is stored in the rotated basis. The first step only finds the bases.
"""

from optgen.spec import (
    col_mean,
    cols,
    descending,
    eigenvalues,
    eigenvectors,
    hyper,
    lerp,
    maximum,
    minimum,
    ndim,
    optimizer,
    qr,
    require,
    row_mean,
    rows,
    sqrt,
    state,
    transpose,
)


def descending_eigenvectors(x):
    """Return the eigenvectors, ordered by descending eigenvalues."""
    return eigenvectors(x) @ transpose(descending(eigenvalues(x)))


def inverse_sqrt(x):
    return minimum(1 / sqrt(maximum(x, 1e-30)), 4000)


@optimizer(paper="https://arxiv.org/abs/2509.03378")
def KLSOAP(
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
    a=state("whitening_left", shape="row", init="start"),
    b=state("whitening_right", shape="col", init="start"),
    *,
    lr=hyper(0.018, ge=0),
    betas=hyper((0.95, 0.9), ge=0, lt=1),
    shampoo_beta=hyper(0.9, ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    precondition_frequency=hyper(1, ge=1, whole=True),
    start=hyper(0.1**-0.5, gt=0),
):
    """SOAP whose covariances minimize a Kullback-Leibler divergence (Lin et al., 2025)."""
    require(ndim(p) == 2, "KLSOAP takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    if t == 1:
        L, R = g @ transpose(g) / cols(p), transpose(g) @ g / rows(p)
        U, W = descending_eigenvectors(L), descending_eigenvectors(R)
    else:
        x = transpose(U) @ g @ W
        m = lerp(m, x, 1 - beta1)
        v = lerp(v, x**2, 1 - beta2)
        u = U @ (m / (sqrt(v) + eps)) @ transpose(W)

        y, z = g @ W * b, transpose(U) @ g * a
        L = lerp(L, y @ transpose(y) / cols(p), 1 - shampoo_beta)
        R = lerp(R, transpose(z) @ z / rows(p), 1 - shampoo_beta)
        left, right = row_mean((x * b) ** 2), col_mean((x * a) ** 2)
        a = inverse_sqrt(lerp(1 / a**2, left, 1 - shampoo_beta))
        b = inverse_sqrt(lerp(1 / b**2, right, 1 - shampoo_beta))
        if (t - 1) % precondition_frequency == 0:
            momentum = U @ m @ transpose(W)
            U, W = qr(L @ U), qr(R @ W)
            m = transpose(U) @ momentum @ W
        p = p - lr * u

"""KL-Shampoo, a simple variant: each covariance is whitened by the eigenvalues of the other."""

from optgen.spec import (
    cols,
    diag,
    eigenvalues,
    eigenvectors,
    hyper,
    lerp,
    maximum,
    ndim,
    optimizer,
    qr,
    require,
    rows,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2509.03378")
def KLShampoo(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    L=state("gram_left", shape=("rows", "rows")),
    R=state("gram_right", shape=("cols", "cols")),
    U=state("basis_left", shape=("rows", "rows")),
    W=state("basis_right", shape=("cols", "cols")),
    a=state("eigenvalues_left", shape="row", init=1),
    b=state("eigenvalues_right", shape="col", init=1),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.95, 0.95), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    precondition_frequency=hyper(10, ge=1),
):
    """Shampoo whose factors minimize a Kullback-Leibler divergence (Lin et al., 2025)."""
    require(ndim(p) >= 2, "KLShampoo takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    m = lerp(m, g, 1 - beta1)
    if t == 1:
        L = g @ transpose(g) / cols(p)
        R = transpose(g) @ g / rows(p)
        U, W = eigenvectors(L), eigenvectors(R)
        a, b = eigenvalues(L), transpose(eigenvalues(R))
    else:
        x = g @ W
        y = transpose(U) @ g
        L = lerp(L, x / maximum(b, eps) @ transpose(x) / cols(p), 1 - beta2)
        R = lerp(R, transpose(y) @ (y / maximum(a, eps)) / rows(p), 1 - beta2)
        if t % precondition_frequency == 0:
            U, W = qr(L @ U), qr(R @ W)
        a = lerp(a, diag(transpose(U) @ L @ U), 1 - beta2)
        b = lerp(b, transpose(diag(transpose(W) @ R @ W)), 1 - beta2)
    scale = sqrt(maximum(a, eps)) * sqrt(maximum(b, eps))
    p = p - lr * U @ (transpose(U) @ m @ W / scale) @ transpose(W)

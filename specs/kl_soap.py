"""KL-SOAP, as its authors' repository yorkerlin/KL-Methods has it, for matrices.

The first step only finds the bases.
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


def basis(x):
    """Return the eigenvectors, sorted by descending eigenvalues."""
    return eigenvectors(x) @ transpose(descending(eigenvalues(x)))


def whitening(values, count, largest):
    """Return the inverse square roots of values, at most `max(10, min(count, largest))`."""
    return minimum(1 / sqrt(values), maximum(10, minimum(count, largest)))


@optimizer(paper="https://arxiv.org/abs/2509.03378")
def KLSOAP(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    L=state("gram_left", shape=("rows", "rows"), dtype="at_least_float32"),
    R=state("gram_right", shape=("cols", "cols"), dtype="at_least_float32"),
    U=state("basis_left", shape=("rows", "rows"), dtype="at_least_float32"),
    W=state("basis_right", shape=("cols", "cols"), dtype="at_least_float32"),
    a=state("whitening_left", shape="row", dtype="at_least_float32"),
    b=state("whitening_right", shape="col", dtype="at_least_float32"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.9, 0.98), ge=0, lt=1),
    shampoo_beta=hyper(-1.0, ge=-1, lt=1, about="Decay of the covariances (betas[1] if below 0)"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.01, ge=0),
    precondition_frequency=hyper(10, ge=1, whole=True),
    init_factor=hyper(0.1, gt=0),
    max_clamp_value=hyper(4000, gt=0),
):
    """SOAP whose covariances minimize a Kullback-Leibler divergence (Lin et al., 2025)."""
    require(ndim(p) == 2, "KLSOAP takes matrices, not the shape {shape}")
    beta1, beta2 = betas
    if shampoo_beta >= 0:
        decay = shampoo_beta
    else:
        decay = beta2

    if t == 1:
        L = lerp(L, g @ transpose(g) / cols(p), 1 - decay)
        R = lerp(R, transpose(g) @ g / rows(p), 1 - decay)
        U, W = basis(L), basis(R)
        a, b = a + 1 / sqrt(init_factor), b + 1 / sqrt(init_factor)
    else:
        x = transpose(U) @ g @ W
        m = lerp(m, x, 1 - beta1)
        v = lerp(v, x**2, 1 - beta2)
        p = p - lr * U @ (m / (sqrt(v) + eps)) @ transpose(W)
        p = p - lr * weight_decay * p

        y, z = g @ W * b, transpose(U) @ g * a
        L = lerp(L, y @ transpose(y) / cols(p), 1 - decay)
        R = lerp(R, transpose(z) @ z / rows(p), 1 - decay)
        left, right = row_mean((x * b) ** 2), col_mean((x * a) ** 2)
        a = whitening(lerp(1 / a**2, left, 1 - decay), rows(p), max_clamp_value)
        b = whitening(lerp(1 / b**2, right, 1 - decay), cols(p), max_clamp_value)
        if (t - 1) % precondition_frequency == 0:
            momentum = U @ m @ transpose(W)
            U, W = qr(L @ U), qr(R @ W)
            m = transpose(U) @ momentum @ W

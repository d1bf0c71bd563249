"""Contra-Muon with SOAP, which is gated for some matrices.

Groups with `gated` beside `soap` mix the momentum with SOAP's direction: the more SOAP's direction
agrees with the momentum and the gradient, the larger is its share. The script changes the bounds of
this share, `trust`, during training.
"""

from optgen.spec import (
    clamp,
    col_mean,
    cols,
    descending,
    diag,
    eigenvectors,
    flag,
    hyper,
    lerp,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    qr,
    require,
    rms,
    row_mean,
    rows,
    sqrt,
    state,
    sum,
    transpose,
)


def unit_vector(x):
    return x / maximum(norm(x), 1e-10)


def power_iteration(x, v):
    """Return the vector after one power iteration."""
    return unit_vector(transpose(x) @ unit_vector(x @ v))


def leading_direction(x, v):
    """Return an estimate of the first right singular vector, by five power iterations from v."""
    v1 = power_iteration(x, v)
    v2 = power_iteration(x, v1)
    v3 = power_iteration(x, v2)
    v4 = power_iteration(x, v3)
    return power_iteration(x, v4)


def cosine(x, y):
    return sum(x * y) / maximum(norm(x) * norm(y), 1e-8)


def mean_gram(old, x, beta):
    return lerp(old, x @ transpose(x), 1 - beta)


def sorting_permutation(gram, basis):
    """Return the permutation that sorts a basis by the covariance along each direction."""
    return descending(diag(transpose(basis) @ gram @ basis))


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/283")
def TrustLight(
    p,
    g,
    t,
    /,
    m=state("momentum_buffer"),
    r=state("row_mean_sq", shape="row"),
    c=state("col_mean_sq", shape="col"),
    v=state("second_moment", when="soap"),
    L=state("gram_left", shape=("rows", "rows"), when="soap"),
    R=state("gram_right", shape=("cols", "cols"), when="soap"),
    U=state("basis_left", shape=("rows", "rows"), when="soap"),
    W=state("basis_right", shape=("cols", "cols"), when="soap"),
    *,
    lr=hyper(0.0375, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    beta2=hyper(0.95, ge=0, lt=1),
    contra=hyper(0.2, ge=0),
    shampoo_beta=hyper(0.9, ge=0, lt=1),
    precondition_frequency=hyper(10, ge=1, whole=True),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
    soap=flag(False),
    gated=flag(False),
    trust=hyper((0.45, 0.85), ge=0, le=1),
):
    """Contra-Muon, in some groups with SOAP's direction, or a gated mix of it and the momentum."""
    require(ndim(p) == 2, "TrustLight takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    if soap and t > 1:
        x = transpose(U) @ u @ W
        v = lerp(v, x**2, 1 - shampoo_beta)
        root = sqrt(maximum(v, 1e-16))
        if gated:
            root = maximum(root, maximum(0.2 * rms(root), 1e-8))
        y = U @ (x / root) @ transpose(W)
        y = y * norm(u) / maximum(norm(y), 1e-8)
        if gated:
            agreement = clamp((cosine(y, u) - 0.2) / 0.8, 0, 1)
            gain = clamp(cosine(y, g) / maximum(cosine(u, g), 1e-8), 0, 1)
            y = lerp(u, y, clamp(agreement * gain, trust[0], trust[1]))
            y = y * maximum(norm(u), 1e-8) / maximum(norm(y), 1e-8)
        u = y

    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
    ones = transpose(0 * c + 1)
    w = leading_direction(u, unit_vector(ones))
    d = o - contra * u / maximum(norm(u @ w), 1e-10)
    o = sqrt(maximum(1, rows(p) / cols(p))) * d * norm(o) / maximum(norm(d), 1e-10)
    if rows(p) >= cols(p):
        r = lerp(r, row_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(r, 1e-10))
    else:
        c = lerp(c, col_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(c, 1e-10))
    p = p - lr * u * norm(o) / maximum(norm(u), 1e-10)

    if soap:
        L, R = mean_gram(L, g, shampoo_beta), mean_gram(R, transpose(g), shampoo_beta)
        if t == 1:
            U, W = eigenvectors(L), eigenvectors(R)
        elif (t - 1) % precondition_frequency == 0:
            S, T = sorting_permutation(L, U), sorting_permutation(R, W)
            v = S @ v @ transpose(T)
            U, W = qr(L @ U @ transpose(S)), qr(R @ W @ transpose(T))

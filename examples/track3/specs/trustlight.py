"""Contra-Muon with SOAP, which acts on some matrices through a gate.

Groups with `gated` beside `soap` take SOAP's direction only as far as it agrees with the momentum
and the gradient. The training sets the bounds of the gate, `trust`.
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


def unit(x):
    return x / maximum(norm(x), 1e-10)


def turned(x, v):
    """Return the next direction of a power iteration, closer to the first singular vector."""
    return unit(transpose(x) @ unit(x @ v))


def cosine(x, y):
    return sum(x * y) / maximum(norm(x) * norm(y), 1e-8)


def gram(old, x, beta):
    return lerp(old, x @ transpose(x), 1 - beta)


def order(gram, basis):
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
    """Contra-Muon, in some groups with SOAP's direction, which a gate may mix with the momentum."""
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
            agreed = clamp((cosine(y, u) - 0.2) / 0.8, 0, 1)
            gain = clamp(cosine(y, g) / maximum(cosine(u, g), 1e-8), 0, 1)
            y = lerp(u, y, clamp(agreed * gain, trust[0], trust[1]))
            y = y * maximum(norm(u), 1e-8) / maximum(norm(y), 1e-8)
        u = y

    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, 1)
    v5 = turned(u, turned(u, turned(u, turned(u, turned(u, unit(transpose(0 * c + 1)))))))
    less = o - contra * u / maximum(norm(u @ v5), 1e-10)
    o = sqrt(maximum(1, rows(p) / cols(p))) * less * norm(o) / maximum(norm(less), 1e-10)
    if rows(p) >= cols(p):
        r = lerp(r, row_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(r, 1e-10))
    else:
        c = lerp(c, col_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(c, 1e-10))
    p = p - lr * u * norm(o) / maximum(norm(u), 1e-10)

    if soap:
        L, R = gram(L, g, shampoo_beta), gram(R, transpose(g), shampoo_beta)
        if t == 1:
            U, W = eigenvectors(L), eigenvectors(R)
        elif (t - 1) % precondition_frequency == 0:
            S, T = order(L, U), order(R, W)
            v = S @ v @ transpose(T)
            U, W = qr(L @ U @ transpose(S)), qr(R @ W @ transpose(T))

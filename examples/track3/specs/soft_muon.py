"""Contra-Muon that gradually becomes Soft-Muon, with SOAP.

Sizes are fourth roots of the sum of the fourth powers of the singular values. A mean of all
Newton-Schulz iterates gradually replaces the orthogonal matrix: the training sets the shares
`contra` and `soft`. Groups with `value` beside `soap` mix SOAP's direction with the momentum.
"""

from optgen.spec import (
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
    qr,
    require,
    rms,
    row_mean,
    rows,
    sqrt,
    state,
    transpose,
)


def size(x):
    """Return the fourth root of the sum of the fourth powers of the singular values."""
    return sqrt(norm(x @ transpose(x)))


def resized(x, length):
    """Return a matrix scaled to a size."""
    return x * (length / maximum(size(x), 1e-10))


def polar(x):
    """Return the next iterate of Newton-Schulz."""
    y = x @ transpose(x)
    return 2 * x + (0.5 * y @ y - 1.5 * y) @ x


def four(x):
    """Return the fourth iterate of Newton-Schulz from a matrix."""
    return polar(polar(polar(polar(x))))


def sum_of_four(x, a, b, c, d):
    """Return the sum of a matrix and the next three iterates, weighted by a, b, c and d."""
    y = polar(x)
    z = polar(y)
    return a * x + b * y + c * z + d * polar(z)


def gram(old, x, beta):
    return lerp(old, x @ transpose(x), 1 - beta)


def order(gram, basis):
    """Return the permutation that sorts a basis by the covariance along each direction."""
    return descending(diag(transpose(basis) @ gram @ basis))


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/291")
def SoftMuon(
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
    shampoo_beta=hyper(0.9, ge=0, lt=1),
    precondition_frequency=hyper(10, ge=1, whole=True),
    soap=flag(False),
    value=flag(False),
    contra=hyper(0.2, ge=0),
    soft=hyper(0.0, ge=0, le=1),
):
    """Muon less a share of the momentum, mixed with softer directions, in SOAP's basis."""
    require(ndim(p) == 2, "SoftMuon takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    if soap and t > 1:
        x = transpose(U) @ u @ W
        v = lerp(v, x**2, 1 - shampoo_beta)
        root = sqrt(maximum(v, 1e-16))
        if value:
            root = maximum(root, maximum(0.55 * rms(root), 1e-8))
            y = lerp(u, U @ (x / root) @ transpose(W), 0.95)
        else:
            y = U @ (x / root) @ transpose(W)
        u = y * maximum(size(u), 1e-8) / maximum(size(y), 1e-8)

    x = u / maximum(size(u), 1e-7)
    x4 = four(x)
    x8 = four(x4)
    o = four(x8)
    s = sum_of_four(x, 0.1091613623, 0.07085664498, 0.05210528973, 0.05457295795)
    s = s + sum_of_four(x4, 0.05011334061, 0.03334622198, 0.05022104481, 0.1053727358)
    s = s + sum_of_four(x8, 0.1187323776, 0.1185061091, 0.1185059576, 0.1185059576)
    mixed = lerp(resized(o - contra * resized(u, 1), size(o)), resized(s, size(o)), soft)
    o = sqrt(maximum(1, rows(p) / cols(p))) * resized(mixed, size(o))
    if rows(p) >= cols(p):
        r = lerp(r, row_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(r, 1e-10))
    else:
        c = lerp(c, col_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(c, 1e-10))
    p = p - lr * resized(u, size(o))

    if soap:
        L, R = gram(L, g, shampoo_beta), gram(R, transpose(g), shampoo_beta)
        if t == 1:
            U, W = eigenvectors(L), eigenvectors(R)
        elif (t - 1) % precondition_frequency == 0:
            S, T = order(L, U), order(R, W)
            v = S @ v @ transpose(T)
            U, W = qr(L @ U @ transpose(S)), qr(R @ W @ transpose(T))

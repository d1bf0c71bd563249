"""Contra-Muon with SOAP whose wide matrices get columns of nearly one size, by Aurora.

Aurora makes a wide matrix orthogonal three times. Before each time it scales the columns: those
that became small last time are enlarged. Sizes are fourth roots of the sum of the fourth
powers of the singular values. The training sets `momentum` and the share `contra`. Groups with
`value` beside `soap` mix SOAP's direction with the momentum.
"""

from optgen.spec import (
    col_norm,
    col_sum,
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


def orthogonal(x):
    return four(four(four(x / maximum(size(x), 1e-7))))


def scaled(d, o, share):
    """Return new scales of the columns, from the orthogonal matrix that the old scales gave."""
    return d * (share / maximum(col_sum(o**2), 1e-14)) ** 0.25


def gram(old, x, beta):
    return lerp(old, x @ transpose(x), 1 - beta)


def order(gram, basis):
    """Return the permutation that sorts a basis by the covariance along each direction."""
    return descending(diag(transpose(basis) @ gram @ basis))


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/300")
def Aurora(
    p,
    g,
    t,
    /,
    m=state("momentum_buffer"),
    v=state("second_moment", when="soap"),
    L=state("gram_left", shape=("rows", "rows"), when="soap"),
    R=state("gram_right", shape=("cols", "cols"), when="soap"),
    U=state("basis_left", shape=("rows", "rows"), when="soap"),
    W=state("basis_right", shape=("cols", "cols"), when="soap"),
    *,
    lr=hyper(0.0375, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    shampoo_beta=hyper(0.9, ge=0, lt=1),
    precondition_frequency=hyper(10, ge=1, whole=True),
    soap=flag(False),
    value=flag(False),
    contra=hyper(0.2, ge=0),
):
    """Muon of wide matrices with even columns, less a share of the momentum, in SOAP's basis."""
    require(ndim(p) == 2, "Aurora takes matrices, not the shape {shape}")

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

    if rows(p) < cols(p):
        d = 1 / maximum(col_norm(u), 1e-7)
        o = orthogonal(d * u)
        d = scaled(d, o, rows(p) / cols(p))
        o = orthogonal(d * u)
        d = scaled(d, o, rows(p) / cols(p))
        o = orthogonal(d * u)
    else:
        o = orthogonal(u)
    o = resized(o - contra * resized(u, 1), size(o))
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

    if soap:
        L, R = gram(L, g, shampoo_beta), gram(R, transpose(g), shampoo_beta)
        if t == 1:
            U, W = eigenvectors(L), eigenvectors(R)
        elif (t - 1) % precondition_frequency == 0:
            S, T = order(L, U), order(R, W)
            v = S @ v @ transpose(T)
            U, W = qr(L @ U @ transpose(S)), qr(R @ W @ transpose(T))

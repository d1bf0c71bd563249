"""Aurora: Contra-Muon with SOAP, where the columns of a wide matrix get nearly equal norms.

Aurora makes a wide matrix orthogonal three times. Before each time it scales the columns, and
enlarges those that became small the last time. The script changes `momentum` and the share
`contra` during training. Groups with `value` beside `soap` mix SOAP's direction with the momentum.
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


def schatten_norm(x):
    """Return the Schatten 4-norm, (Σ σ⁴)^¼ over the singular values σ."""
    return sqrt(norm(x @ transpose(x)))


def rescale(x, new_norm):
    """Return a matrix scaled to a Schatten norm."""
    return x * (new_norm / maximum(schatten_norm(x), 1e-10))


def newton_schulz(x):
    """Return the matrix after one Newton-Schulz iteration."""
    y = x @ transpose(x)
    return 2 * x + (0.5 * y @ y - 1.5 * y) @ x


def four_iterations(x):
    """Return the matrix after four Newton-Schulz iterations."""
    return newton_schulz(newton_schulz(newton_schulz(newton_schulz(x))))


def polar_factor(x):
    return four_iterations(four_iterations(four_iterations(x / maximum(schatten_norm(x), 1e-7))))


def next_column_scales(d, o, share):
    """Return new scales of the columns. The old scales `d` gave the orthogonal matrix `o`."""
    return d * (share / maximum(col_sum(o**2), 1e-14)) ** 0.25


def mean_gram(old, x, beta):
    return lerp(old, x @ transpose(x), 1 - beta)


def sorting_permutation(gram, basis):
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
    """Contra-Muon in SOAP's basis; columns of wide matrices get nearly equal norms."""
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
        u = y * maximum(schatten_norm(u), 1e-8) / maximum(schatten_norm(y), 1e-8)

    if rows(p) < cols(p):
        d = 1 / maximum(col_norm(u), 1e-7)
        o = polar_factor(d * u)
        d = next_column_scales(d, o, rows(p) / cols(p))
        o = polar_factor(d * u)
        d = next_column_scales(d, o, rows(p) / cols(p))
        o = polar_factor(d * u)
    else:
        o = polar_factor(u)
    o = rescale(o - contra * rescale(u, 1), schatten_norm(o))
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

    if soap:
        L, R = mean_gram(L, g, shampoo_beta), mean_gram(R, transpose(g), shampoo_beta)
        if t == 1:
            U, W = eigenvectors(L), eigenvectors(R)
        elif (t - 1) % precondition_frequency == 0:
            S, T = sorting_permutation(L, U), sorting_permutation(R, W)
            v = S @ v @ transpose(T)
            U, W = qr(L @ U @ transpose(S)), qr(R @ W @ transpose(T))

"""Contra-Muon that gradually becomes Soft-Muon, with SOAP.

A weighted sum of all Newton-Schulz iterates gradually replaces the orthogonal matrix: the script
changes the shares `contra` and `soft` during training. Groups with `value` beside `soap` mix SOAP's
direction with the momentum.
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


def weighted_sum(x, a, b, c, d):
    """Return the sum of an iterate and the next three, weighted by a, b, c and d."""
    y = newton_schulz(x)
    z = newton_schulz(y)
    return a * x + b * y + c * z + d * newton_schulz(z)


def mean_gram(old, x, beta):
    return lerp(old, x @ transpose(x), 1 - beta)


def sorting_permutation(gram, basis):
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
    """Contra-Muon in SOAP's basis, mixed with a sum of all Newton-Schulz iterates."""
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
        u = y * maximum(schatten_norm(u), 1e-8) / maximum(schatten_norm(y), 1e-8)

    x = u / maximum(schatten_norm(u), 1e-7)
    x4 = four_iterations(x)
    x8 = four_iterations(x4)
    o = four_iterations(x8)
    s = weighted_sum(x, 0.1091613623, 0.07085664498, 0.05210528973, 0.05457295795)
    s = s + weighted_sum(x4, 0.05011334061, 0.03334622198, 0.05022104481, 0.1053727358)
    s = s + weighted_sum(x8, 0.1187323776, 0.1185061091, 0.1185059576, 0.1185059576)
    contra_o = rescale(o - contra * rescale(u, 1), schatten_norm(o))
    mixed = lerp(contra_o, rescale(s, schatten_norm(o)), soft)
    o = sqrt(maximum(1, rows(p) / cols(p))) * rescale(mixed, schatten_norm(o))
    if rows(p) >= cols(p):
        r = lerp(r, row_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(r, 1e-10))
    else:
        c = lerp(c, col_mean(o**2), 1 - beta2)
        u = o / sqrt(maximum(c, 1e-10))
    p = p - lr * rescale(u, schatten_norm(o))

    if soap:
        L, R = mean_gram(L, g, shampoo_beta), mean_gram(R, transpose(g), shampoo_beta)
        if t == 1:
            U, W = eigenvectors(L), eigenvectors(R)
        elif (t - 1) % precondition_frequency == 0:
            S, T = sorting_permutation(L, U), sorting_permutation(R, W)
            v = S @ v @ transpose(T)
            U, W = qr(L @ U @ transpose(S)), qr(R @ W @ transpose(T))

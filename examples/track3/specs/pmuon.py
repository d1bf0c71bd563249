"""PMuon: Muon of a momentum between powers of the covariances of its rows and of its columns.

The eigenvectors come from one power iteration in each step. They begin at random bases.
"""

from optgen.spec import (
    col_sum,
    cols,
    fresh,
    gaussian,
    hyper,
    identity,
    lerp,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    qr,
    require,
    rows,
    sqrt,
    state,
    transpose,
)


def inverse_power(gram, basis, size, exponent):
    """Return a negative power of a matrix with these eigenvectors, scaled to mean size 1."""
    d = maximum(col_sum(basis * (gram @ basis)), 1e-6) ** -exponent
    return basis * d @ transpose(basis) * (sqrt(size) / (norm(d) + 1e-6))


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/285")
def PMuon(
    p,
    g,
    t,
    /,
    m=state("momentum_buffer"),
    L=state("gram_left", shape=("rows", "rows")),
    R=state("gram_right", shape=("cols", "cols")),
    U=state("basis_left", shape=("rows", "rows")),
    W=state("basis_right", shape=("cols", "cols")),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(0.035, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.025, ge=0),
    gram_beta=hyper(0.95, ge=0, lt=1),
    exponent=hyper(0.3, ge=0),
    seed=hyper(0, ge=0, whole=True),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """Muon whose momentum is divided by powers of its singular values so far (2026)."""
    require(ndim(p) == 2, "PMuon takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    left, right = u @ transpose(u), transpose(u) @ u
    L, R = gram_beta * L + left, gram_beta * R + right
    left = left + gram_beta * L + 1e-6 * identity(L)
    right = right + gram_beta * R + 1e-6 * identity(R)
    if fresh(U):
        U, W = qr(gaussian(U, seed, k)), qr(gaussian(W, seed, k))
    U, W = qr(left @ U), qr(right @ W)
    u = inverse_power(left, U, rows(p), exponent) @ u @ inverse_power(right, W, cols(p), exponent)

    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, divisor="none")
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

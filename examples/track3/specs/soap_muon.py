"""SOAP-Muon: a momentum divided in SOAP's basis, which Muon makes orthogonal.

SOAP's bases turn in each step. Groups with `gated` mix the momentum with SOAP's direction: the more
SOAP's direction agrees with the momentum and the gradient, the larger is its share. The script
changes `momentum` and the bounds of this share, `trust`, during training.
"""

from optgen.spec import (
    clamp,
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
    rows,
    sqrt,
    state,
    sum,
    transpose,
)


def schatten_norm(x):
    """Return the Schatten 4-norm, (Σ σ⁴)^¼ over the singular values σ."""
    return maximum(sqrt(norm(x @ transpose(x))), 1e-8)


def cosine(x, y):
    return sum(x * y) / maximum(norm(x) * norm(y), 1e-8)


def mean_gram(old, x, beta):
    return lerp(old, x @ transpose(x), 1 - beta)


def sorting_permutation(gram, basis):
    """Return the permutation that sorts a basis by the covariance along each direction."""
    return descending(diag(transpose(basis) @ gram @ basis))


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/321")
def SOAPMuon(
    p,
    g,
    t,
    /,
    m=state("momentum_buffer"),
    v=state("second_moment"),
    L=state("gram_left", shape=("rows", "rows")),
    R=state("gram_right", shape=("cols", "cols")),
    U=state("basis_left", shape=("rows", "rows")),
    W=state("basis_right", shape=("cols", "cols")),
    *,
    lr=hyper(0.0375, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    shampoo_beta=hyper(0.9, ge=0, lt=1),
    gated=flag(False),
    trust=hyper((0.45, 0.85), ge=0, le=1),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """Muon of SOAP's direction, in some groups of a gated mix of it and the momentum (2026)."""
    require(ndim(p) == 2, "SOAPMuon takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    if t > 1:
        x = transpose(U) @ u @ W
        v = lerp(v, x**2, 1 - shampoo_beta)
        y = U @ (x / sqrt(maximum(v, 1e-16))) @ transpose(W)
        y = y * schatten_norm(u) / schatten_norm(y)
        if gated:
            agreement = clamp((cosine(y, u) - 0.2) / 0.8, 0, 1)
            gain = clamp(cosine(y, g) / maximum(cosine(u, g), 1e-8), 0, 1)
            y = lerp(u, y, clamp(agreement * gain, trust[0], trust[1]))
            y = y * schatten_norm(u) / schatten_norm(y)
        u = y
    o = orthogonalize(u, ns_coefficients, 12, 1e-7, divisor="spectral")
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

    L, R = mean_gram(L, g, shampoo_beta), mean_gram(R, transpose(g), shampoo_beta)
    if t == 1:
        U, W = eigenvectors(L), eigenvectors(R)
    else:
        S, T = sorting_permutation(L, U), sorting_permutation(R, W)
        v = S @ v @ transpose(T)
        U, W = qr(L @ U @ transpose(S)), qr(R @ W @ transpose(T))

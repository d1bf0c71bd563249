"""Newton-Muon: a gradient times the inverse covariance of its layer's inputs, and then Muon.

The training loop hands over the covariance, the mean of x xᵀ over the inputs x of the layer, in
some steps. A layer's inputs may be in blocks: the covariance is zero between blocks, and an element
of `input_blocks` is 1 / n between two of the n inputs of a block, otherwise 0.
"""

from optgen.spec import (
    cholesky,
    cols,
    diag,
    fresh,
    given,
    hyper,
    identity,
    lerp,
    maximum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    rows,
    solve_transposed,
    solve_triangular,
    sqrt,
    state,
    trace,
    where,
)


def inverse(x):
    """Return the inverse of a positive definite matrix, or the identity if it is none."""
    factor = cholesky(x)
    y = solve_transposed(factor, solve_triangular(factor, identity(x)))
    return where(trace(y) > 0, y, identity(x))


@optimizer(paper="https://arxiv.org/abs/2604.01472")
def NewtonMuon(
    p,
    g,
    new=given("input_covariance", shape=("cols", "cols")),
    blocks=given("input_blocks", shape=("cols", "cols")),
    /,
    m=state("momentum_buffer"),
    C=state("covariance", shape=("cols", "cols")),
    K=state("inverse_covariance", shape=("cols", "cols")),
    *,
    lr=hyper(0.02, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.025, ge=0),
    ns_coefficients=hyper((2.0, -1.5, 0.5)),
):
    """Muon of gradients that are whitened by the inputs of their layers (2026)."""
    require(ndim(p) == 2, "NewtonMuon takes matrices, not the shape {shape}")

    if fresh(K):
        C = 0.001 * identity(C)
        K = identity(K)
    if given(new) and given(blocks):
        C = lerp(C, new, 0.05)
        K = inverse(C + (0.2 * blocks @ diag(C) + 1e-8) * identity(C))
    g = g @ K
    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, divisor="none")
    p = p - lr * weight_decay * p
    p = p - lr * sqrt(maximum(1, rows(p) / cols(p))) * o

"""SinkSOAP: a momentum in the eigenbases of the gradients' covariances, balanced there.

Sinkhorn's iterations scale rows and columns of the momentum's squares until all rows, and all
columns, have equal sums. The momentum is scaled by the roots, and returns to the standard basis;
NorMuon's division follows. The order of eigenvectors has no effect.
"""

from optgen.spec import (
    col_mean,
    col_ones,
    cols,
    eigenvectors,
    hyper,
    identity,
    lerp,
    maximum,
    minimum,
    ndim,
    norm,
    optimizer,
    require,
    row_mean,
    rows,
    sqrt,
    state,
    tall,
    transpose,
)


def basis(gram, eps):
    return eigenvectors(0.5 * (gram + transpose(gram)) + eps * identity(gram))


def row_scales(p, x, c, eps):
    """Return the scales of rows for which all rows of x have one sum, with scales c of columns."""
    return 1 / (rows(p) * (x @ c + eps))


def col_scales(p, x, r, eps):
    return 1 / (cols(p) * (transpose(x) @ r + eps))


def iteration(p, x, c, eps):
    """Return the scales of columns after one of Sinkhorn's iterations."""
    return col_scales(p, x, row_scales(p, x, c, eps), eps)


def three_iterations(p, x, c, eps):
    return iteration(p, x, iteration(p, x, iteration(p, x, c, eps), eps), eps)


def with_norm_of(x, u):
    return u * (maximum(norm(x), 1e-10) / maximum(norm(u), 1e-10))


@optimizer(paper="https://github.com/KellerJordan/modded-nanogpt/pull/298")
def SinkSOAP(
    p,
    g,
    /,
    m=state("momentum_buffer"),
    L=state("gram_left", shape=("rows", "rows")),
    R=state("gram_right", shape=("cols", "cols")),
    r_sq=state("row_mean_sq", shape="row", when="tall"),
    c_sq=state("col_mean_sq", shape="col", when="not tall"),
    *,
    lr=hyper(0.04, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    gram_beta=hyper(0.95, ge=0, lt=1),
    beta2=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.025, ge=0),
    eps=hyper(1e-8, gt=0),
):
    """A momentum whose rows and columns have equal norms in the eigenbases of the gradients."""
    require(ndim(p) == 2, "SinkSOAP takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - momentum)
    u = lerp(g, m, momentum)
    L = lerp(L, g @ transpose(g), 1 - gram_beta)
    R = lerp(R, transpose(g) @ g, 1 - gram_beta)
    U, W = basis(L, eps), basis(R, eps)

    x = transpose(U) @ u @ W
    e = x**2 + eps
    c = three_iterations(p, e, transpose(col_ones(p)), eps)
    c = three_iterations(p, e, three_iterations(p, e, c, eps), eps)
    r = row_scales(p, e, c, eps)
    c = col_scales(p, e, r, eps)
    x = U @ (sqrt(r) * x * sqrt(transpose(c))) @ transpose(W)

    size = sqrt(minimum(rows(p), cols(p)) * maximum(1, rows(p) / cols(p)))
    x = x * size / maximum(norm(x), eps)
    if rows(p) == cols(p):
        u = x
    elif tall(p):
        r_sq = lerp(r_sq, row_mean(x**2), 1 - beta2)
        u = with_norm_of(x, x / maximum(sqrt(r_sq), 1e-10))
    else:
        c_sq = lerp(c_sq, col_mean(x**2), 1 - beta2)
        u = with_norm_of(x, x / maximum(sqrt(c_sq), 1e-10))
    p = p - lr * weight_decay * p - lr * u

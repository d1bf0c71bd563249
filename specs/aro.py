"""ARO, as microsoft/dion had it: descent by rows in rotated coordinates.

The rotation follows the step. If a matrix has more rows than columns, rounding chooses some axes of
the rotation, as it does in the authors' code: transpose such a matrix.
"""

from optgen.spec import (
    choice,
    cols,
    fresh,
    hyper,
    identity,
    lerp,
    maximum,
    ndim,
    optimizer,
    qr,
    require,
    row_norm,
    rows,
    sign,
    sqrt,
    state,
    transpose,
)


def rows_of_one_length(x, length):
    """Return rows of a length."""
    return x / maximum(row_norm(x), 1e-8) * length


@optimizer(paper="https://arxiv.org/abs/2602.09006")
def ARO(
    p,
    g,
    /,
    m=state("momentum", dtype="at_least_float32"),
    R=state("rotation", shape=("rows", "rows"), dtype="at_least_float32"),
    *,
    lr=hyper(0.01, ge=0),
    mu=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.01, ge=0),
    base_opt=choice("row_norm", "sign", about="The step in rotated coordinates"),
):
    """Rows of one length, or signs, in coordinates that the momentum turns (Gong et al., 2026)."""
    require(ndim(p) == 2, "ARO takes matrices, not the shape {shape}")

    m = lerp(m, g, 1 - mu)
    if fresh(R):
        R = identity(R)
    x = transpose(R) @ m
    if base_opt == "row_norm":
        R = qr(m @ transpose(rows_of_one_length(x, sqrt(cols(p)))))
        u = R @ rows_of_one_length(transpose(R) @ m, sqrt(cols(p)))
    else:
        R = qr(m @ transpose(sign(x)))
        u = R @ sign(transpose(R) @ m)
    p = p - lr * weight_decay * p
    p = p - lr * 0.2 * sqrt(maximum(rows(p), cols(p))) * u  # 0.2: as large as Adam's steps

"""SM3-II, which keeps the largest second moment of every row and column instead of all of them."""

from optgen.spec import (
    col_max_abs,
    factored,
    hyper,
    minimum,
    optimizer,
    row_max_abs,
    sqrt,
    state,
    where,
)


@optimizer(paper="https://arxiv.org/abs/1901.11150")
def SM3(
    p,
    g,
    /,
    r=state("row_max", shape="row", when="factored", dtype="at_least_float32"),
    c=state("col_max", shape="col", when="factored", dtype="at_least_float32"),
    v=state("sum", when="not factored", dtype="at_least_float32"),
    m=state("momentum_buffer", when="momentum"),
    *,
    lr=hyper(0.1, ge=0),
    momentum=hyper(0.9, ge=0, lt=1),
):
    """SM3-II (Anil, Gupta, Koren and Singer, 2019, Algorithm 2); the sets are rows and columns."""
    if factored(p):
        v_hat = minimum(r, c) + g**2
        r, c = row_max_abs(v_hat), col_max_abs(v_hat)
    else:
        v = v + g**2
        v_hat = v
    u = where(v_hat > 0, g / sqrt(v_hat), 0)

    if momentum:
        m = momentum * m + (1 - momentum) * u
        p = p - lr * m
    else:
        p = p - lr * u

from optgen.spec import (
    abs,
    col_mean,
    factored,
    flag,
    hyper,
    optimizer,
    require,
    rms,
    row_mean,
    state,
)


@optimizer(paper="https://example.org")
def OldFactors(
    p,
    g,
    /,
    r=state("row", shape="row", init=1, when="by_row"),
    c=state("col", shape="col", init=1),
    *,
    lr=hyper(1e-2, ge=0),
    by_row=flag(True),
):
    """Compute elements from old rows and columns, and new rows and columns from these elements."""
    require(factored(p), "no matrix: {shape}")
    u = g * c
    if by_row:
        u = u * r
        r = 0.5 * r + row_mean(abs(u))
    c = 0.5 * c + col_mean(abs(u))
    p = p - lr * u / (1 + rms(row_mean(u) * col_mean(u)))

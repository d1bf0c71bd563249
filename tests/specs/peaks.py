from optgen.spec import (
    col_max_abs,
    col_sum,
    factored,
    flag,
    hyper,
    max_abs,
    maximum,
    mean,
    optimizer,
    rms,
    row_max_abs,
    row_mean,
    rows,
    state,
)


@optimizer(paper="https://example.org")
def Peaks(
    p,
    g,
    /,
    r=state("row_peak", shape="row", when="factored"),
    c=state("col_peak", shape="col", when="factored"),
    *,
    lr=hyper(1e-2, ge=0),
    sharp=flag(True),
):
    """Largest magnitudes of elements, of rows and columns, and of their products, beside sums."""
    if factored(p):
        r = 0.5 * r + row_max_abs(g) + row_mean(g)
        if sharp:
            c = maximum(c, col_max_abs(g - p * r))
        else:
            c = c + col_sum(g) / rows(p)
        peak = row_max_abs(c) + col_max_abs(r - mean(r))
        u = g * r / (1 + c + peak)
        u = u / (1 + row_max_abs(u * c) * col_max_abs(u) + row_max_abs(r * c))
        level = mean(row_max_abs(g)) + max_abs(row_mean(g)) + rms(col_max_abs(p))
    else:
        u = g
        level = max_abs(g)
    p = p - lr * u / (1 + level)

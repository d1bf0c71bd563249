from optgen.spec import (
    abs,
    col_mean,
    factored,
    flag,
    hyper,
    mean,
    norm,
    optimizer,
    rms,
    row_mean,
    sqrt,
    state,
    where,
)


@optimizer(paper="https://example.org")
def ReducedScalars(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    r=state("row_var", shape="row", when="factored"),
    s=state("size", shape="scalar", init="start"),
    q=state("trust", shape="scalar", init=1),
    n=state("count", shape="scalar"),
    *,
    lr=hyper(1e-2, ge=0),
    start=hyper(0.5),
    swap=flag(False),
):
    """Compute scalar states from reductions.

    The rule swaps them, reads them before and after it writes them, and writes them in branches,
    with and without row states.
    """
    n = n + 1
    u = g / (1 + abs(s))
    if factored(p):
        r = 0.5 * r + row_mean(u**2) / (1 + q**2)
        s = 0.9 * s + rms(r)
        u = u / sqrt(r + col_mean(abs(u)) + 1)
    else:
        s = 0.9 * s + mean(abs(u))
    if swap:
        s, q = q, s
    elif t > 2:
        q = 0.5 * q + norm(u) / n
        s = where(q > s, s, 0.5 * q)
    m = 0.9 * m + u * q
    p = p - lr * m / (1 + abs(s))

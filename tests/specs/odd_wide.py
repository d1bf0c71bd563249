"""A rule with wide reductions and group states of every kind, in every place that is allowed."""

from optgen.spec import (
    factored,
    flag,
    hyper,
    max_abs,
    mean,
    minimum,
    norm,
    optimizer,
    rms,
    row_mean,
    sqrt,
    state,
    sum,
)


@optimizer(paper="https://example.org")
def OddWide(
    p,
    g,
    t,
    /,
    m=state("momentum_buffer", when="heavy"),
    k=state("k", shape="group", init=1.0),
    size=state("size", shape="group"),
    r=state("row_var", shape="row", when="factored"),
    *,
    lr=hyper(0.1, ge=0),
    clip=hyper(None, optional=True, gt=0),
    heavy=flag(True),
):
    """Wide sums that only some parameters read, sums of sums, and states of the group."""
    k = k + 1
    param_norm = norm(p, over="group")
    first = norm(g, over="group")
    if factored(p):
        g = 1.5 * g * mean(g)
    second = norm(g, over="group")
    if clip is not None:
        g = g * minimum(clip / rms(g, over="group"), 1)
    u = g / k
    if heavy:
        m = 0.9 * m + u - mean(p, over="group")
        u = m
    if factored(p):
        r = 0.9 * r + row_mean(u**2)
        u = u / (sqrt(r) + 1) / (1 + param_norm)
    size = 0.5 * size + sum(u * p, over="all")
    big = max_abs(u, over="all")
    p = p - lr * u / (1 + big) / t - 0.01 * size * g * first / second

"""One-sided Shampoo whose parameters share a growing step size, as in D-Adaptation: for tests."""

from optgen.spec import (
    factored,
    hyper,
    inverse_root,
    max_abs,
    maximum,
    norm,
    optimizer,
    row_mean,
    sqrt,
    state,
    sum,
    transpose,
)


@optimizer(paper="https://example.org")
def ClippedShampoo(
    p,
    g,
    t,
    /,
    m=state("momentum"),
    L=state("gram", shape=("rows", "rows"), when="factored"),
    r=state("row_scale", shape="row", when="factored"),
    c=state("count", shape="scalar"),
    w=state("weight", shape="scalar"),
    d=state("d", shape="group", init="d0"),
    *,
    lr=hyper(1e-2, ge=0),
    d0=hyper(0.5, gt=0),
    eps=hyper(1e-4, ge=0),
):
    """Momentum times an inverse root, over a row scale; the group's updates set the step size."""
    c = c + 1
    m = 0.9 * m + g
    w = 0.5 * w + norm(m)
    if factored(p):
        L = L + g @ transpose(g)
        r = 0.5 * r + row_mean(g**2)
        u = inverse_root(L, 4, eps) @ m / (1 + sqrt(r))
    else:
        u = m / (1 + w)
    n = norm(u, over="group")
    d = maximum(d, sum(u * g, over="group") / (1 + n))
    p = p - lr * d * u / (1 + max_abs(u, over="all")) / c

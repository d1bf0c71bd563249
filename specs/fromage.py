"""Fromage, as jxbz/fromage has it."""

from optgen.spec import fresh, hyper, norm, optimizer, sqrt, state, where


@optimizer(paper="https://arxiv.org/abs/2002.03432")
def Fromage(
    p,
    g,
    /,
    limit=state("max", shape="scalar"),
    *,
    lr=hyper(1e-2, ge=0),
    p_bound=hyper(
        None, optional=True, gt=0, about="The largest norm of weights, relative to their first one"
    ),
):
    """Steps of a length relative to the norm of weights (Bernstein et al., 2020)."""
    if fresh(limit):
        limit = norm(p)
    p = p - lr * where(norm(p) > 0 and norm(g) > 0, norm(p) / norm(g), 1) * g
    p = p / sqrt(1 + lr**2)
    if p_bound is not None:
        p = where(norm(p) > p_bound * limit, p_bound * limit / norm(p), 1) * p

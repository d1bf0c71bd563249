"""Pion, as Sphere-AI-Lab/pion has it, with both momenta on the rotations (`lie_lie`)."""

from optgen.spec import (
    cols,
    hyper,
    lerp,
    ndim,
    norm,
    optimizer,
    require,
    rows,
    sqrt,
    state,
    transpose,
)


@optimizer(paper="https://arxiv.org/abs/2605.12492")
def Pion(
    p,
    g,
    /,
    mi=state("m_in", shape=("cols", "cols"), dtype="at_least_float32"),
    mo=state("m_out", shape=("rows", "rows"), dtype="at_least_float32"),
    vi=state("v_in", shape=("cols", "cols"), dtype="at_least_float32"),
    vo=state("v_out", shape=("rows", "rows"), dtype="at_least_float32"),
    *,
    lr=hyper(1e-4, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    rms=hyper(0.2, ge=0, about="Root mean square of a step's elements at a rate of 1"),
):
    """Adam on rotations of both sides, which keep singular values (Shi et al., 2026)."""
    require(ndim(p) == 2, "Pion takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    gi = transpose(p) @ g
    go = g @ transpose(p)
    gi, go = gi - transpose(gi), go - transpose(go)
    mi, mo = lerp(mi, gi, 1 - beta1), lerp(mo, go, 1 - beta1)
    vi, vo = lerp(vi, gi**2, 1 - beta2), lerp(vo, go**2, 1 - beta2)
    ai = mi / (sqrt(vi) + eps)
    ao = mo / (sqrt(vo) + eps)
    size = lr * rms * sqrt(rows(p) * cols(p)) / (norm(p @ ai + ao @ p) + 1e-12)

    # exp(-size * ao) @ p @ exp(-size * ai), to the second order in each factor
    x = size * (p @ ai)
    p = p - x + 0.5 * size * (x @ ai)
    y = size * (ao @ p)
    p = p - y + 0.5 * size * (ao @ y)

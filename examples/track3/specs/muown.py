"""Muown: Muon turns the rows of a matrix, and Adam changes their norms.

A row is `size * v / v_norm`: a number times the direction of a vector `v`. The matrix of all `v`
has a gradient of its own, whose momentum is made orthogonal. The norms of `v` are on a schedule:
they change how far a step turns a row, but not the weights.
"""

from optgen.spec import (
    cols,
    fresh,
    hyper,
    lerp,
    maximum,
    minimum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    row_norm,
    row_sum,
    rows,
    sqrt,
    state,
    where,
)

POLAR_EXPRESS = (
    8.2051, -22.9019, 16.4607,
    4.0664, -2.8612, 0.5184,
    3.9096, -2.8234, 0.5250,
    3.2856, -2.4153, 0.4853,
    2.2779, -1.6198, 0.3985,
    1.8726, -1.2307, 0.3585,
    1.8564, -1.2132, 0.3568,
    1.8750, -1.2500, 0.3750,
)  # fmt: skip


@optimizer(paper="https://arxiv.org/abs/2605.10797")
def Muown(
    p,
    g,
    t,
    /,
    size=state("row_size", shape="row"),
    v_norm=state("direction_norm", shape="row"),
    first_norm=state("first_direction_norm", shape="row"),
    m=state("momentum_buffer"),
    m_size=state("exp_avg", shape="row"),
    v_size=state("exp_avg_sq", shape="row"),
    *,
    lr=hyper(0.00325, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    betas=hyper((0.9, 0.95), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    direction_scale=hyper(0.2, ge=0),
    last_norm=hyper(2.496, gt=0),
    norm_steps=hyper(3165, ge=2, whole=True),
    norm_power=hyper(1.2, gt=0),
    ns_coefficients=hyper(POLAR_EXPRESS),
):
    """Muon for the directions of rows, Adam for their norms (2026)."""
    require(ndim(p) == 2, "Muown takes matrices, not the shape {shape}")
    beta1, beta2 = betas

    if fresh(m):
        size = where(row_norm(p) > 1e-12, row_norm(p), sqrt(0.33))
        v_norm = size
        first_norm = size
    direction = p / size
    g_size = row_sum(g * direction)
    g_v = size / v_norm * (g - direction * g_size)

    m = momentum * m + g_v
    u = g_v + momentum * m
    o = orthogonalize(u / (norm(u) + 1e-7), ns_coefficients, 12, divisor="none")
    v = v_norm * direction - lr * direction_scale * sqrt(maximum(rows(p), cols(p))) * o

    m_size = lerp(m_size, g_size, 1 - beta1)
    v_size = lerp(v_size, g_size**2, 1 - beta2)
    size = size - lr * m_size / (1 - beta1**t) / (sqrt(v_size / (1 - beta2**t)) + eps)
    p = size * v / maximum(row_norm(v), 1e-12)
    v_norm = lerp(first_norm, last_norm, minimum((t - 1) / (norm_steps - 1), 1) ** norm_power)

"""Apollo of 2020, as XuezheMax/apollo has it: a diagonal quasi-Newton rule."""

from optgen.spec import (
    abs,
    choice,
    hyper,
    max_abs,
    maximum,
    mean,
    optimizer,
    state,
    sum,
)


@optimizer(paper="https://arxiv.org/abs/2009.13586")
def ApolloDQN(
    p,
    g,
    t,
    /,
    m=state("exp_avg_grad", dtype="at_least_float32"),
    B=state("approx_hessian", dtype="at_least_float32"),
    d=state("update", dtype="at_least_float32"),
    *,
    lr=hyper(1e-2, gt=0),
    beta=hyper(0.9, ge=0, lt=1),
    eps=hyper(1e-4, gt=0),
    rebound=choice("constant", "belief", about="The least curvature"),
    warmup=hyper(500, ge=0),
    init_lr=hyper(1e-5, ge=0, about="Rate at which the warmup begins"),
    weight_decay=hyper(0.0, ge=0),
    weight_decay_type=choice("L2", "decoupled", "stable"),
):
    """Momentum over a diagonal curvature from differences of gradients (Ma, 2020)."""
    if t - 1 < warmup:
        rate = (lr - init_lr) * (t - 1) / warmup + init_lr
    else:
        rate = lr
    if weight_decay_type == "L2":
        g = g + weight_decay * p
    alpha = (1 - beta) / (1 - beta**t)

    change = g - m
    m = m + alpha * change
    if rebound == "belief":
        least = max_abs(change)
        size = sum(d**4) ** 0.25 + eps
    else:
        least = 0.01
        size = sum(d**4) ** 0.25 + eps / 0.01
    v = d / size
    B = B - (alpha * sum(change * v) / size + sum(B * v**2)) * v**2
    if rebound == "belief":
        curvature = maximum(abs(B), least) + eps / alpha
    else:
        curvature = maximum(abs(B), least)
    d = m / curvature
    if weight_decay_type == "decoupled":
        d = d + weight_decay * p
    elif weight_decay_type == "stable":
        d = d + weight_decay / mean(curvature) * p
    p = p - rate * d

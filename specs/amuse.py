"""AMUSE, as rwth-i6/returnn has it: Muon in Schedule-Free, for matrices.

The authors recover the average from the parameter, which is between it and `z`. Here it is a state.
"""

from optgen.spec import (
    cols,
    hyper,
    lerp,
    maximum,
    minimum,
    ndim,
    optimizer,
    orthogonalize,
    require,
    rows,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2605.22432")
def AMUSE(
    p,
    g,
    t,
    /,
    m=state("momentum_buffer"),
    z=state("z", init="p", dtype="at_least_float32"),
    x=state("x", init="p", dtype="at_least_float32"),
    weight_sum=state("weight_sum", shape="scalar"),
    c_warmup=state("c_warmup", shape="scalar"),
    *,
    lr=hyper(0.02, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    weight_decay=hyper(0.0, ge=0),
    beta1=hyper(0.9, gt=0, lt=1, about="Place of gradients between z (0) and the average (1)"),
    warmup_steps=hyper(100, ge=1, whole=True),
    rho=hyper(1.0, ge=0, le=1, about="How fast gradients move to the average after the warmup"),
    r=hyper(0.0, about="Power of the step count in the weights of the average"),
    weight_lr_power=hyper(2.0),
    ns_coefficients=hyper((3.4445, -4.7750, 2.0315)),
    ns_steps=hyper(5, ge=1, lt=100, whole=True),
):
    """Muon without a schedule, whose gradients move to the average (Kim et al., 2026)."""
    require(ndim(p) == 2, "AMUSE takes matrices, not the shape {shape}")

    rate = lr * minimum(1, t / warmup_steps)
    weight = t**r * rate**weight_lr_power
    weight_sum = weight_sum + weight
    if weight_sum > 0:
        c = weight / weight_sum
    else:
        c = 1
    beta = beta1
    if t == warmup_steps:
        c_warmup = c
    elif t > warmup_steps and c < 1 and c_warmup > 0 and c_warmup < 1:
        beta = 1 - (c * (1 - c_warmup) / (c_warmup * (1 - c))) ** rho * (1 - beta1)

    m = lerp(m, g, 1 - momentum)
    o = orthogonalize(lerp(g, m, momentum), ns_coefficients, ns_steps, 1e-30)
    z = z - rate * weight_decay * z
    z = z - rate * 0.2 * sqrt(maximum(rows(p), cols(p))) * o  # 0.2: as large as Adam's steps
    x = lerp(x, z, c)
    p = lerp(x, z, 1 - beta)


@AMUSE.train
def to_gradient_point(p, x, /):
    """Exchange the average and the point where gradients are taken."""
    p, x = x, p


@AMUSE.eval
def to_average(p, x, /):
    """Exchange the point where gradients are taken and the average."""
    p, x = x, p

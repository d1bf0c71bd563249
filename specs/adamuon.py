"""AdaMuon, as Chongjie-Si/AdaMuon has it."""

from optgen.spec import (
    cols,
    flag,
    hyper,
    lerp,
    maximum,
    minimum,
    ndim,
    norm,
    optimizer,
    orthogonalize,
    require,
    rows,
    sign,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/2507.11005")
def AdaMuon(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    v=state("v_buffer"),
    *,
    lr=hyper(0.02, ge=0),
    weight_decay=hyper(0.01, ge=0),
    momentum=hyper(0.95, ge=0, lt=1),
    nesterov=flag(True),
    ns_coefficients=hyper((3.4445, -4.7750, 2.0315)),
    ns_steps=hyper(5, ge=1, lt=100, whole=True),
    eps=hyper(1e-8, ge=0),
):
    """Muon on the signs of the momentum, with a second moment per element (Si et al., 2025)."""
    require(ndim(p) == 2, "AdaMuon takes matrices, not the shape {shape}")

    b = lerp(b, g, 1 - momentum)
    if nesterov:
        u = lerp(g, b, momentum)
    else:
        u = b
    o = orthogonalize(sign(u), ns_coefficients, ns_steps, 1e-7)
    v = momentum * v + (1 - momentum) * o**2
    o = o / (sqrt(v) + eps)
    o = o * sqrt(minimum(rows(p), cols(p))) / (norm(o) + eps)
    p = p - lr * weight_decay * p
    p = p - lr * 0.2 * sqrt(maximum(rows(p), cols(p))) * o  # 0.2: as large as Adam's steps

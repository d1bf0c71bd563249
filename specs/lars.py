"""LARS, as timm has it."""

from optgen.spec import flag, fresh, hyper, norm, optimizer, state, where


@optimizer(paper="https://arxiv.org/abs/1708.03888")
def LARS(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    *,
    lr=hyper(0.1, ge=0),
    momentum=hyper(0.9, ge=0, lt=1),
    weight_decay=hyper(1e-4, ge=0),
    trust_coefficient=hyper(1e-3, ge=0),
    eps=hyper(1e-8, ge=0),
    nesterov=flag(False),
):
    """Momentum with steps as large as the layer (You et al., 2017)."""
    ratio = trust_coefficient * norm(p) / (norm(g) + weight_decay * norm(p) + eps)
    u = where(norm(p) > 0 and norm(g) > 0, ratio, 1) * (g + weight_decay * p)

    if fresh(b):
        b = u
    else:
        b = momentum * b + u
    if nesterov:
        p = p - lr * (u + momentum * b)
    else:
        p = p - lr * b

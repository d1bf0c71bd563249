"""SGD-SaI, as AnonymousAlethiometer/SGD_SaI has it.

The authors divide by `eps` alone if there is one element. Here nothing divides its norm.
"""

from optgen.spec import fresh, hyper, mean, norm, numel, optimizer, sqrt, state, sum


@optimizer(paper="https://arxiv.org/abs/2412.11768")
def SGDSaI(
    p,
    g,
    /,
    b=state("momentum_buffer"),
    s=state("gsnr", shape="scalar"),
    *,
    lr=hyper(1e-2, ge=0),
    momentum=hyper(0.9, ge=0, lt=1),
    weight_decay=hyper(1e-2, ge=0),
    eps=hyper(1e-8, ge=0),
):
    """Momentum at rates by the first gradient's norm over its deviation (Xu et al., 2024)."""
    if fresh(b):
        b, s = g, norm(g)
        if numel(p) > 1:
            s = s / (sqrt(sum((g - mean(g)) ** 2) / (numel(p) - 1)) + eps)
    else:
        b = momentum * b + (1 - momentum) * g
    p = p - lr * weight_decay * p
    p = p - lr * s * b

"""LARS, as timm has it.

As in timm, parameters without weight decay take SGD's steps, unless `always_adapt`.
"""

from optgen.spec import flag, fresh, hyper, minimum, norm, optimizer, require, state, where


@optimizer(paper="https://arxiv.org/abs/1708.03888")
def LARS(
    p,
    g,
    /,
    b=state("momentum_buffer", when="momentum"),
    *,
    lr=hyper(1.0, ge=0),
    momentum=hyper(0.0, ge=0, about="Fraction of the last update that is kept in the next one"),
    dampening=hyper(0.0, ge=0, about="Fraction of the gradient that is not added to the momentum"),
    weight_decay=hyper(0.0, ge=0),
    nesterov=flag(False),
    trust_coeff=hyper(1e-3, ge=0),
    eps=hyper(1e-8, ge=0),
    trust_clip=flag(False, about="Let no step be larger than SGD's, as LARC does"),
    always_adapt=flag(False, about="Scale steps of parameters without weight decay, too"),
):
    """SGD with steps relative to the norm of weights (You et al., 2017)."""
    require(
        not nesterov or (momentum > 0 and dampening == 0),
        "Nesterov momentum takes momentum and no dampening",
    )

    trust = trust_coeff * norm(p) / (norm(g) + weight_decay * norm(p) + eps)
    trust = where(norm(p) > 0 and norm(g) > 0, trust, 1)
    if trust_clip:
        trust = minimum(trust / lr, 1)
    if weight_decay or always_adapt:
        g = trust * (g + weight_decay * p)

    if momentum:
        if fresh(b):
            b = g
        else:
            b = momentum * b + (1 - dampening) * g
        if nesterov:
            g = g + momentum * b
        else:
            g = b
    p = p - lr * g

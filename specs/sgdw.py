"""SGDW, as timm has it."""

from optgen.spec import flag, fresh, hyper, optimizer, require, state


@optimizer(paper="https://arxiv.org/abs/1711.05101")
def SGDW(
    p,
    g,
    /,
    b=state("momentum_buffer", when="momentum"),
    *,
    lr=hyper(1e-3, ge=0),
    momentum=hyper(0.0, ge=0, about="Fraction of the last update that is kept in the next one"),
    dampening=hyper(0.0, ge=0, about="Fraction of the gradient that is not added to the momentum"),
    weight_decay=hyper(0.0, ge=0),
    nesterov=flag(False),
):
    """SGD with decoupled weight decay (Loshchilov & Hutter, 2017)."""
    require(
        not nesterov or (momentum > 0 and dampening == 0),
        "Nesterov momentum takes momentum and no dampening",
    )

    p = p - lr * weight_decay * p
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

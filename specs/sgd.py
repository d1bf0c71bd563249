from optgen.spec import flag, fresh, hyper, optimizer, require, state


@optimizer(
    paper="https://proceedings.mlr.press/v28/sutskever13.html",
    gradient="rows",
    keywords=(
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "nesterov",
        "*",
        "maximize",
        "foreach",
        "differentiable",
        "fused",
    ),
    group=(
        "lr",
        "momentum",
        "dampening",
        "weight_decay",
        "nesterov",
        "maximize",
        "foreach",
        "differentiable",
        "fused",
    ),
    compute_dtype="param",
)
def SGD(
    p,
    g,
    /,
    b=state("momentum_buffer", when="momentum", rows=False),
    *,
    lr=hyper(1e-3, ge=0, tensor="always"),
    momentum=hyper(0, ge=0, about="Fraction of the last update that is kept in the next one"),
    dampening=hyper(0, about="Fraction of the gradient that is not added to the momentum"),
    weight_decay=hyper(0, ge=0, tensor="always", rows=False),
    nesterov=flag(False, about="Look ahead along the momentum, after Nesterov"),
):
    """Stochastic gradient descent, optionally with (Nesterov) momentum (Sutskever et al., 2013)."""
    require(
        not nesterov or (momentum > 0 and dampening == 0),
        "Nesterov momentum requires a momentum and zero dampening",
    )
    if weight_decay:
        g = g + weight_decay * p

    if momentum:
        if fresh(b):
            b = g  # PyTorch: the first step is not dampened
        else:
            b = momentum * b + (1 - dampening) * g
        if nesterov:
            g = g + momentum * b
        else:
            g = b

    p = p - lr * g

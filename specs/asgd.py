from optgen.spec import hyper, maximum, optimizer, state


@optimizer(
    paper="https://doi.org/10.1137/0330046",
    keywords=(
        "lr",
        "lambd",
        "alpha",
        "t0",
        "weight_decay",
        "foreach",
        "maximize",
        "differentiable",
        "capturable",
    ),
    group=(
        "lr",
        "lambd",
        "alpha",
        "t0",
        "weight_decay",
        "foreach",
        "maximize",
        "differentiable",
        "capturable",
    ),
    compute_dtype="param",
    scalar_device="param",
)
def ASGD(
    p,
    g,
    t,
    /,
    eta=state("eta", shape="scalar", dtype="torch", init="lr"),
    mu=state("mu", shape="scalar", dtype="torch", init=1),
    a=state("ax"),
    *,
    lr=hyper(1e-2, ge=0, tensor="always"),
    lambd=hyper(1e-4, ge=0, about="Decay of the parameter, and of the step size with time"),
    alpha=hyper(0.75, ge=0, about="Power of time by which the step size decays"),
    t0=hyper(1e6, about="Number of steps after which averaging begins"),
    weight_decay=hyper(0, ge=0),
):
    """Stochastic gradient descent, and the average of its path (Polyak & Juditsky, 1992)."""
    if weight_decay:
        g = g + weight_decay * p

    p = p - eta * lambd * p - eta * g

    if mu == 1:
        a = p
    else:
        a = a + mu * (p - a)

    eta = lr / (1 + lambd * lr * t) ** alpha
    mu = 1 / maximum(1, t - t0)

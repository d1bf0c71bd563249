from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(
    paper="https://jmlr.org/papers/v12/duchi11a.html",
    gradient="rows",
    keywords=(
        "lr",
        "lr_decay",
        "weight_decay",
        "initial_accumulator_value",
        "eps",
        "foreach",
        "*",
        "maximize",
        "differentiable",
        "fused",
    ),
    group=(
        "lr",
        "lr_decay",
        "eps",
        "weight_decay",
        "initial_accumulator_value",
        "foreach",
        "maximize",
        "differentiable",
        "fused",
    ),
    compute_dtype="param",
)
def Adagrad(
    p,
    g,
    t,
    /,
    s=state("sum", init="initial_accumulator_value", eager=True),
    *,
    lr=hyper(1e-2, ge=0, tensor="always"),
    lr_decay=hyper(0, ge=0, about="Number that each step adds to the divisor of lr"),
    weight_decay=hyper(0, ge=0, rows=False),
    initial_accumulator_value=hyper(0, ge=0, about="Start value of the sum, in every group"),
    eps=hyper(1e-10, ge=0),
):
    """Gradients divided by the root of the sum of all squares so far (Duchi et al., 2011)."""
    if weight_decay:
        g = g + weight_decay * p

    s = s + g**2

    rate = lr / (1 + (t - 1) * lr_decay)
    p = p - rate * g / (sqrt(s) + eps)

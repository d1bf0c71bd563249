from optgen.spec import hyper, optimizer, sqrt, state


@optimizer(
    paper="https://arxiv.org/abs/1212.5701",
    keywords=(
        "lr",
        "rho",
        "eps",
        "weight_decay",
        "foreach",
        "*",
        "capturable",
        "maximize",
        "differentiable",
    ),
    group=(
        "lr",
        "rho",
        "eps",
        "weight_decay",
        "maximize",
        "capturable",
        "foreach",
        "differentiable",
    ),
    compute_dtype="param",
)
def Adadelta(
    p,
    g,
    t,
    /,
    v=state("square_avg", role="second_moment"),
    u=state("acc_delta"),
    *,
    lr=hyper(1.0, ge=0, tensor="always"),
    rho=hyper(0.9, ge=0, le=1, about="Decay rate of both running averages"),
    eps=hyper(1e-6, ge=0, about="Added to both running averages for numerical stability"),
    weight_decay=hyper(0, ge=0),
):
    """Gradients scaled by running root mean squares of steps and gradients (Zeiler, 2012)."""
    if weight_decay:
        g = g + weight_decay * p

    v = rho * v + (1 - rho) * g**2
    delta = sqrt(u + eps) / sqrt(v + eps) * g
    u = rho * u + (1 - rho) * delta**2

    p = p - lr * delta

from optgen.spec import flag, hyper, optimizer, sqrt, state


@optimizer(
    paper="https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
    keywords=(
        "lr",
        "alpha",
        "eps",
        "weight_decay",
        "momentum",
        "centered",
        "capturable",
        "foreach",
        "maximize",
        "differentiable",
    ),
    group=(
        "lr",
        "momentum",
        "alpha",
        "eps",
        "centered",
        "weight_decay",
        "capturable",
        "foreach",
        "maximize",
        "differentiable",
    ),
    compute_dtype="param",
)
def RMSprop(
    p,
    g,
    t,
    /,
    v=state("square_avg", role="second_moment"),
    b=state("momentum_buffer", when="momentum"),
    a=state("grad_avg", when="centered"),
    *,
    lr=hyper(1e-2, ge=0, tensor="always"),
    alpha=hyper(0.99, ge=0),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0, ge=0),
    momentum=hyper(0, ge=0, about="Fraction of the last update that is kept in the next one"),
    centered=flag(
        False,
        about="Subtract the square of the mean gradient: divide by the standard deviation",
    ),
):
    """Gradients divided by a running root mean square (Hinton, 2012; centered: Graves, 2013)."""
    if weight_decay:
        g = g + weight_decay * p

    v = alpha * v + (1 - alpha) * g**2
    if centered:
        a = alpha * a + (1 - alpha) * g
        rms = sqrt(v - a**2)
    else:
        rms = sqrt(v)

    if momentum:
        b = momentum * b + g / (rms + eps)
        p = p - lr * b
    else:
        p = p - lr * g / (rms + eps)

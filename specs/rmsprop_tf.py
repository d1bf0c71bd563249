"""RMSprop in TensorFlow's form, as timm has it."""

from optgen.spec import flag, hyper, optimizer, sqrt, state


@optimizer(paper="https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf")
def RMSpropTF(
    p,
    g,
    /,
    v=state("square_avg", init=1, role="second_moment"),
    b=state("momentum_buffer", when="momentum"),
    a=state("grad_avg", when="centered"),
    *,
    lr=hyper(1e-2, ge=0),
    alpha=hyper(0.9, ge=0),
    eps=hyper(1e-10, ge=0),
    weight_decay=hyper(0.0, ge=0),
    momentum=hyper(0.0, ge=0, about="Fraction of the last update that is kept in the next one"),
    centered=flag(False),
    decoupled_decay=flag(False),
    lr_in_momentum=flag(True),
):
    """RMSprop with eps inside of the root, and a mean that begins at 1 (Hinton, 2012)."""
    if weight_decay:
        if decoupled_decay:
            p = p - lr * weight_decay * p
        else:
            g = g + weight_decay * p
    v = alpha * v + (1 - alpha) * g**2
    if centered:
        a = alpha * a + (1 - alpha) * g
        u = g / sqrt(v - a**2 + eps)
    else:
        u = g / sqrt(v + eps)
    if momentum and lr_in_momentum:
        b = momentum * b + lr * u
        p = p - b
    elif momentum:
        b = momentum * b + u
        p = p - lr * b
    else:
        p = p - lr * u

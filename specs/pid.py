"""The PID optimizer, as pytorch_optimizer has it."""

from optgen.spec import fresh, hyper, optimizer, state


@optimizer(paper="https://github.com/tensorboy/PIDOptimizer")
def PID(
    p,
    g,
    /,
    i=state("i_buffer", when="momentum"),
    d=state("d_buffer", when="momentum"),
    g_prev=state("grad_buffer", when="momentum"),
    *,
    lr=hyper(1e-3, ge=0),
    momentum=hyper(
        0.0, ge=0, lt=1, about="Fraction of the last update that is kept in the next one"
    ),
    dampening=hyper(0.0, ge=0, about="Fraction of the gradient that is not added to the momentum"),
    weight_decay=hyper(0.0, ge=0),
    integral=hyper(5.0, ge=0, about="Weight of the sum of gradients"),
    derivative=hyper(10.0, ge=0, about="Weight of the average change of gradients"),
):
    """SGD as a controller of three terms, of which momentum is the integral (An et al., 2018)."""
    if weight_decay:
        g = g + weight_decay * p
    u = g
    if momentum:
        if fresh(g_prev):
            g_prev = g
        i = momentum * i + (1 - dampening) * g
        d = momentum * d + (1 - momentum) * (g - g_prev)
        g_prev = g
        u = g + integral * i + derivative * d
    p = p - lr * u

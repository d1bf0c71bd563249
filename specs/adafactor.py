"""Adafactor, in torch's form.

Unlike in the paper, eps1 bounds the root of the second moment from below, instead of being added to
the squared gradient, and the step size is never larger than lr.
"""

from optgen.spec import (
    col_mean,
    factored,
    hyper,
    lerp,
    machine_eps,
    maximum,
    minimum,
    optimizer,
    rms,
    row_mean,
    sqrt,
    state,
)


@optimizer(
    paper="https://arxiv.org/abs/1804.04235",
    keywords=("lr", "beta2_decay", "eps", "d", "weight_decay", "*", "foreach", "maximize"),
    group=("lr", "beta2_decay", "eps", "d", "weight_decay", "foreach", "maximize"),
    compute_dtype="param",
)
def Adafactor(
    p,
    g,
    t,
    /,
    r=state("row_var", shape="row", when="factored"),
    c=state("col_var", shape="col", when="factored"),
    v=state("variance", when="not factored"),
    *,
    lr=hyper(1e-2, ge=0, tensor="number", error="Learning rate should be >= 0 but is: {}"),
    beta2_decay=hyper(
        -0.8,
        le=0,
        error="beta2_decay should be <= 0 but is: {}",
        about="Exponent: the newest squared gradient has the weight step**beta2_decay",
    ),
    eps=hyper(
        (None, 1e-3),
        ge=0,
        optional=True,
        error="epsilon{number} should be >= 0 but is: {}",
        about="The least divisor (by default the machine epsilon of the parameter's dtype), and "
        "the least root mean square of a parameter, to which steps are relative",
    ),
    d=hyper(
        1.0,
        ge=1,
        error="Clipping threshold d should be >= 1 but is: {}",
        about="The root mean square above which an update is scaled down",
    ),
    weight_decay=hyper(0.0, ge=0, error="weight_decay should be >= 0 but is: {}"),
):
    """A factored second moment, and steps relative to the weights (Shazeer & Stern, 2018)."""
    eps1, eps2 = eps
    if eps1 is None:
        floor = machine_eps(p)
    else:
        floor = eps1

    rho = minimum(lr, 1 / sqrt(t))
    alpha = maximum(eps2, rms(p)) * rho
    if weight_decay:
        p = p - lr * weight_decay * p

    w = t**beta2_decay
    if factored(p):
        r = lerp(r, row_mean(g**2), w)
        c = lerp(c, col_mean(g**2), w)
        v_hat = r * c / maximum(col_mean(r), floor)
    else:
        v = lerp(v, g**2, w)
        v_hat = v

    u = g / sqrt(maximum(v_hat, floor**2))
    p = p - alpha / maximum(1, rms(u) / d) * u

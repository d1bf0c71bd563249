"""Adafactor, torch's own."""

from optgen.spec import (
    col_mean,
    factored,
    hyper,
    machine_eps,
    maximum,
    minimum,
    optimizer,
    rms,
    row_mean,
    sqrt,
    state,
)


@optimizer(paper="https://arxiv.org/abs/1804.04235")
def Adafactor(
    p,
    g,
    t,
    /,
    r=state("row_var", shape="row", when="factored"),
    c=state("col_var", shape="col", when="factored"),
    v=state("variance", when="not factored"),
    *,
    lr=hyper(1e-2, ge=0, tensor="number"),
    beta2_decay=hyper(-0.8, le=0),
    eps=hyper((None, 1e-3), ge=0, optional=True),
    d=hyper(1.0, ge=1),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam with a second moment in rows and columns (Shazeer & Stern, 2018)."""
    eps1, eps2 = eps
    if eps1 is None:
        floor = machine_eps(p)
    else:
        floor = eps1

    rho = minimum(lr, 1 / sqrt(t))
    alpha = maximum(eps2, rms(p)) * rho
    p = p - lr * weight_decay * p

    beta2_hat = 1 - t**beta2_decay
    if factored(p):
        r = beta2_hat * r + (1 - beta2_hat) * row_mean(g**2)
        c = beta2_hat * c + (1 - beta2_hat) * col_mean(g**2)
        v_hat = r * c / maximum(col_mean(r), floor)
    else:
        v = beta2_hat * v + (1 - beta2_hat) * g**2
        v_hat = v

    u = g / sqrt(maximum(v_hat, floor**2))
    p = p - alpha / maximum(1, rms(u) / d) * u

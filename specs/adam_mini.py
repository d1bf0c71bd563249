"""Adam-mini, as zyushun/Adam-mini has it. Vectors take Adam's steps; there, only biases do.

A matrix has a second moment for each row. The authors' query and key weights have one for each
head: give these weights the view `"view": (heads, -1)`. A parameter with the view `"view": (1, -1)`
is one row, and has one second moment.
"""

from optgen.spec import factored, hyper, optimizer, row_mean, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2406.16793")
def AdamMini(
    p,
    g,
    t,
    /,
    m=state("m", dtype="at_least_float32"),
    r=state("vmean", shape="row", dtype="at_least_float32", when="factored"),
    v=state("v", dtype="at_least_float32", when="not factored"),
    *,
    lr=hyper(1e-3, ge=0),
    betas=hyper((0.9, 0.999), ge=0, lt=1),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """Adam with one second moment for each row of a matrix (Zhang et al., 2024)."""
    beta1, beta2 = betas

    p = p - lr * weight_decay * p
    m = beta1 * m + (1 - beta1) * g
    if factored(p):
        r = beta2 * r + (1 - beta2) * row_mean(g**2)
        u = m / (sqrt(r / (1 - beta2**t)) + eps)
    else:
        v = beta2 * v + (1 - beta2) * g**2
        u = m / (sqrt(v / (1 - beta2**t)) + eps)
    p = p - lr / (1 - beta1**t) * u

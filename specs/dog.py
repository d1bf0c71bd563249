"""DoG, as formll/dog and optax have it, with one distance for each parameter group."""

from optgen.spec import hyper, maximum, norm, optimizer, sqrt, state, sum


@optimizer(paper="https://arxiv.org/abs/2302.12022")
def DoG(
    p,
    g,
    /,
    x0=state("x0", init="p"),
    r=state("max_distance", shape="group"),
    s=state("grad_sum_sq", shape="group"),
    *,
    lr=hyper(1.0, ge=0),
    reps_rel=hyper(1e-6, ge=0, about="The first step, relative to one and the norm of weights"),
    eps=hyper(1e-8, ge=0),
    weight_decay=hyper(0.0, ge=0),
):
    """SGD whose rate is the distance so far over the norm of gradients (Ivgi et al., 2023)."""
    first = reps_rel * (1 + norm(x0, over="group"))
    r = maximum(r, maximum(norm(p - x0, over="group"), first))
    if weight_decay:
        g = g + weight_decay * p
    s = s + sum(g**2, over="group")
    p = p - lr * r / sqrt(s + eps) * g

"""DoWG, as optax has it, with one distance for each parameter group."""

from optgen.spec import hyper, maximum, optimizer, sqrt, state, sum


@optimizer(paper="https://arxiv.org/abs/2305.16284")
def DoWG(
    p,
    g,
    /,
    x0=state("x0", init="p"),
    d=state("estim_sq_dist", shape="group"),
    s=state("weighted_grad_sum_sq", shape="group"),
    *,
    lr=hyper(1.0, ge=0),
    init_estim_sq_dist=hyper(1e-4, gt=0, about="The first guess of the squared distance"),
    eps=hyper(1e-4, ge=0),
):
    """DoG with gradients weighted by the distance at their time (Khaled et al., 2023)."""
    d = maximum(maximum(d, init_estim_sq_dist), sum((p - x0) ** 2, over="group"))
    s = s + d * sum(g**2, over="group")
    p = p - lr * d / (sqrt(s) + eps) * g

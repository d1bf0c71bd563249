"""SRMM, as pytorch_optimizer has it."""

from optgen.spec import hyper, lerp, optimizer, state


@optimizer(paper="https://arxiv.org/abs/2201.01652")
def SRMM(
    p,
    g,
    t,
    /,
    m=state("mov_avg_grad"),
    x=state("mov_avg_param"),
    *,
    lr=hyper(1e-2, ge=0),
    beta=hyper(0.5, ge=0, le=1, about="How fast the weight of the newest gradient falls"),
    memory_length=hyper(100, ge=1, whole=True, about="Steps after which averages begin anew"),
):
    """Averages of gradients and weights with falling weights (Lyu, 2022)."""
    w = (t % memory_length + 1) ** (-beta)
    m = lerp(m, g, w)
    x = lerp(x, p, w) - lr * m
    p = x

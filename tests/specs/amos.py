from optgen.spec import cols, factored, hyper, mean, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2210.11693")
def Amos(
    p,
    g,
    t,
    /,
    v=state("exp_avg_sq", shape="scalar"),
    d=state("decay", shape="scalar"),
    *,
    lr=hyper(1e-3, ge=0),
    beta=hyper(0.999, ge=0, lt=1),
    eps=hyper(1e-18, ge=0),
    extra_l2=hyper(0.0, ge=0),
    coefficients=hyper((0.25, 0.25), ge=0),
):
    """Steps of a known scale, with a decay that each layer learns; for vectors and matrices."""
    c, c_step = coefficients
    if factored(p):
        rate = lr * sqrt(2 / cols(p))
    else:
        rate = lr * 0.5
    g_sq = mean(g**2)
    v = beta * v + (1 - beta) * g_sq
    r = (1 - beta**t) / (v + eps)
    gamma = lr**2 * r * g_sq / sqrt(1 + c * sqrt(lr) * d)
    p = p - (rate * sqrt(r) * g + (gamma - extra_l2) / 2 * p) / (1 + c_step * sqrt(rate) * d)
    d = d * (1 + gamma) + gamma

"""Amos with the scales of weights that pytorch_optimizer has.

Vectors have the scale 0.5, and matrices sqrt(2 / columns). Parameters of more axes have their
matrices' scale here; the library takes sqrt(1 / size of the second axis).
"""

from optgen.spec import cols, factored, hyper, lerp, mean, optimizer, sqrt, state


@optimizer(paper="https://arxiv.org/abs/2210.11693")
def Amos(
    p,
    g,
    t,
    /,
    v=state("exp_avg_sq", shape="scalar"),
    d=state("decay", shape="scalar"),
    m=state("exp_avg", when="momentum"),
    *,
    lr=hyper(1e-3, ge=0),
    beta=hyper(0.999, ge=0, lt=1),
    momentum=hyper(0.0, ge=0, lt=1),
    extra_l2=hyper(0.0, ge=0),
    c_coef=hyper(0.25, ge=0, about="How fast the decay falls"),
    d_coef=hyper(0.25, ge=0, about="How fast steps fall"),
    eps=hyper(1e-18, ge=0),
):
    """Steps of a known scale, with a decay that falls as it adds up (Tian and Parikh, 2022)."""
    if factored(p):
        rate = lr * sqrt(2 / cols(p))
    else:
        rate = lr * 0.5
    g_sq = mean(g**2)
    v = beta * v + (1 - beta) * g_sq
    r = (1 - beta**t) / (v + eps)
    gamma = lr**2 * r * g_sq / sqrt(1 + c_coef * sqrt(lr) * d)
    u = (rate * sqrt(r) * g + (gamma - extra_l2) / 2 * p) / (1 + d_coef * sqrt(rate) * d)
    d = d * (1 + gamma) + gamma
    if momentum:
        m = lerp(m, u, 1 - momentum)
        u = m
    p = p - u

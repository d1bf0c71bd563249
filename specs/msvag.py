"""M-SVAG, as lballes/msvag and pytorch_optimizer have it."""

from optgen.spec import clamp, hyper, minimum, optimizer, state, where


@optimizer(paper="https://arxiv.org/abs/1705.07774")
def MSVAG(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    v=state("exp_avg_sq"),
    *,
    lr=hyper(1e-2, ge=0),
    beta=hyper(0.9, ge=0, lt=1),
):
    """Momentum with smaller steps where gradients vary more (Balles & Hennig, 2018)."""
    m = beta * m + (1 - beta) * g
    v = beta * v + (1 - beta) * g**2
    m_hat = m / (1 - beta**t)
    rho = (1 - beta ** (2 * t)) * (1 - beta) ** 2 / ((1 - beta**2) * (1 - beta**t) ** 2)
    rho = minimum(rho, 0.9999)
    s = (v / (1 - beta**t) - m_hat**2) / (1 - rho)
    size = m_hat**2 + rho * s
    factor = where(size == 0, 0, clamp(m_hat**2 / size, 0, 1))
    p = p - lr * factor * m_hat

"""Gravity, as dariush-bahrami/gravity.optimizer has it, with random numbers of its own."""

from optgen.spec import cos, fresh, hyper, lerp, log, max_abs, optimizer, random, sqrt, state

TWO_PI = 6.283185307179586


@optimizer(paper="https://arxiv.org/abs/2101.09192")
def Gravity(
    p,
    g,
    t,
    /,
    v=state("v", dtype="at_least_float32"),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(1e-2, ge=0),
    alpha=hyper(0.01, ge=0, about="Deviation of the first velocities, times `lr`"),
    beta=hyper(0.9, ge=0, le=1),
    seed=hyper(0, ge=0, whole=True),
):
    """Velocities from gradients that shrink when they are large (Bahrami & Zadeh, 2021)."""
    if fresh(v) and lr > 0:
        normal = sqrt(-2 * log(1 - random(seed, k))) * cos(TWO_PI * random(seed, k))
        v = alpha / lr * normal
    zeta = g / (1 + (g * max_abs(g)) ** 2)
    v = lerp(v, zeta, 1 - (beta * t + 1) / (t + 2))
    p = p - lr * v

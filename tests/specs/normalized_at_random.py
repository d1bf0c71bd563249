"""Random numbers beside reductions over one parameter and over all."""

from optgen.spec import hyper, max_abs, optimizer, random, random16, rounded_at_random, state


@optimizer()
def NormalizedAtRandom(
    p,
    g,
    t,
    /,
    a=state("noise"),
    k=state("stream", shape="scalar", init="index"),
    *,
    lr=hyper(0.125, ge=0),
    seed=hyper(3, ge=0),
):
    """Steps of equal magnitude and random size."""
    a = random(seed, k)
    g = g / (max_abs(g * a) + max_abs(g, over="all"))
    p = rounded_at_random(p - lr * g, random16(seed, k))

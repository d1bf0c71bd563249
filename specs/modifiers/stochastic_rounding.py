from optgen.spec import hyper, modifier, random16, rounded_at_random, state


@modifier(stage="store")
def stochastic_rounding(
    p,
    u,
    t,
    /,
    stream=state("stream", shape="scalar", init="index"),
    *,
    seed=hyper(0, ge=0, whole=True),
):
    """Round the weights at random, so that their mean is exact (Gupta et al., 2015)."""
    p = rounded_at_random(p + u, random16(seed, stream))

from optgen.spec import hyper, modifier, random, rounded_down, rounded_up, state, where


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
    """Round the weights up or down at random, so that their mean is exact (Gupta et al., 2015)."""
    exact = p + u
    low, high = rounded_down(exact), rounded_up(exact)
    p = where(random(seed, stream) * (high - low) < exact - low, high, low)

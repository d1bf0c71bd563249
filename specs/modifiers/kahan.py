from optgen.spec import modifier, rounded, state


@modifier(stage="store")
def kahan(p, u, /, lost=state("compensation")):
    """Keep what rounding the weights loses, and add it in the next step (Zamirai et al., 2020)."""
    lost = lost + u
    stored = rounded(p + lost)
    lost = lost - (stored - p)
    p = stored

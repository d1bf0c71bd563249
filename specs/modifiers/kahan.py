from optgen.spec import modifier, rounded, state, where


@modifier(stage="store")
def kahan(p, u, /, compensation=state("compensation")):
    """Keep what rounding the weights loses, and add it in the next step (Zamirai et al., 2020)."""
    compensation = where(rounded(p + 0.5 * compensation) == p, compensation, 0) + u
    new_weights = rounded(p + compensation)
    compensation = compensation - (new_weights - p)
    p = new_weights

from optgen.spec import maximum, mean, modifier, where


@modifier(stage="mask")
def cautious(g, u, /):
    """Drop the elements of the update that go with the gradient (Liang et al., 2024).

    The others grow, so that the update keeps its mean size.
    """
    kept = where(u * g < 0, 1, 0)
    u = u * kept / maximum(mean(kept), 1e-3)

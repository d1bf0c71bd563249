from optgen.spec import maximum, mean, modifier, where


@modifier(stage="mask")
def cautious(g, u, /):
    """Zero the elements of the update that have the gradient's sign (Liang et al., 2024).

    The others are scaled up by the inverse of their share.
    """
    kept = where(u * g < 0, 1, 0)
    u = u * kept / maximum(mean(kept), 1e-3)

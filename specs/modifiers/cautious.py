from optgen.spec import maximum, mean, modifier, where


@modifier(stage="mask")
def cautious(g, u, /):
    """Zero the elements of the update that have the gradient's sign (Liang et al., 2024).

    The remaining elements are divided by the share of elements that remain.
    """
    mask = where(u * g < 0, 1, 0)
    u = u * mask / maximum(mean(mask), 1e-3)

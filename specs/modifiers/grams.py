from optgen.spec import abs, modifier, sign


@modifier(stage="mask")
def grams(g, u, /):
    """Give the update the signs of the negative gradient (Cao et al., 2024)."""
    u = -sign(g) * abs(u)

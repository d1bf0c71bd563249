from optgen.spec import factored, modifier, row_mean


@modifier(stage="centralize")
def centralize(p, g, /):
    """Subtract the mean of every row from the gradients of matrices (Yong et al., 2020)."""
    if factored(p):
        g = g - row_mean(g)

from optgen.spec import factored, modifier, ndim, require, row_mean


@modifier(stage="centralize")
def centralize(p, g, /):
    """Subtract the mean of every row from the gradients of matrices (Yong et al., 2020)."""
    require(ndim(p) <= 2, "centralize takes rows: give the shape {shape} a view of two axes")
    if factored(p):
        g = g - row_mean(g)

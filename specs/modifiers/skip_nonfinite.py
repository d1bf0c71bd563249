from optgen.spec import modifier, norm, state, where


@modifier(stage="skip", step="count", guard="finite")
def skip_nonfinite(g, /, count=state("steps", shape="scalar")):
    """Change nothing in a step whose gradients are not all finite."""
    finite = norm(g, over="all") <= 1e300
    count = where(finite, count + 1, count)

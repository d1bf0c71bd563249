from optgen.spec import modifier, state


@modifier(stage="store", weights="x", follows=True)
def master(p, u, /, x=state("master", init="p", dtype="at_least_float32")):
    """Keep the weights in float32; the parameter is rounded (Micikevicius et al., 2018)."""
    x = x + u
    p = x

from optgen.spec import modifier, state


@modifier(stage="store", weights="x")
def master(p, u, /, x=state("master", init="p", dtype="at_least_float32")):
    """Keep the weights in float32, and write their rounded values, which no step reads."""
    x = x + u
    p = x

from optgen.spec import hyper, modifier


@modifier(stage="coupled_decay")
def coupled_decay(p, g, /, *, l2=hyper(1e-2, ge=0)):
    """Add the gradient of the penalty `l2 / 2` times the squared weights."""
    g = g + l2 * p

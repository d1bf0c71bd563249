from optgen.spec import hyper, modifier


@modifier(stage="decay")
def fixed_decay(p, u, /, *, decay=hyper(1e-4, ge=0)):
    """Shrink the weights by the same share in every step, whatever the learning rate."""
    u = u - decay * p

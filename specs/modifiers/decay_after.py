from optgen.spec import hyper, modifier


@modifier(stage="decay")
def decay_after(p, u, lr, /, *, decay=hyper(1e-2, ge=0)):
    """Shrink the weights by `lr * decay` after the update is added."""
    u = u - lr * decay * (p + u)
